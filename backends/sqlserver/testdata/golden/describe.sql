-- parameters: @describe_schema nvarchar(128), @describe_name nvarchar(128)
-- result sets: 8
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @describe_full nvarchar(600) = CASE WHEN @describe_schema = N'' THEN QUOTENAME(@describe_name) ELSE QUOTENAME(@describe_schema) + N'.' + QUOTENAME(@describe_name) END;
DECLARE @describe_table int = OBJECT_ID(@describe_full);
SELECT SCHEMA_NAME(o.schema_id) AS home, o.name, RTRIM(o.type) AS kind, COALESCE(CONVERT(int, t.is_memory_optimized), 0) AS memory,
  CASE WHEN LEFT(o.name, 0) + N'a' = N'A' THEN 1 ELSE 0 END AS folds, USER_NAME() AS who,
  CASE WHEN EXISTS (SELECT 1 FROM sys.indexes AS i WHERE i.object_id = o.object_id AND i.type = 5) THEN 1 ELSE 0 END AS columnstore,
  COALESCE((SELECT TOP (1) COALESCE(i.name, N'') FROM sys.indexes AS i
    WHERE i.object_id = o.object_id AND i.type IN (0, 1, 2) AND i.is_disabled = 0 AND i.is_hypothetical = 0 AND i.allow_row_locks = 0
    ORDER BY i.index_id), N'-') AS no_row_locks
FROM sys.objects AS o LEFT JOIN sys.tables AS t ON t.object_id = o.object_id
WHERE o.object_id = @describe_table;
SELECT c.name, COALESCE(b.name, u.name) AS kind, CONVERT(int, c.max_length) AS bytes, CONVERT(int, c.[precision]) AS digits, CONVERT(int, c.[scale]) AS scale,
  COALESCE(c.collation_name, N'') AS collation, CONVERT(int, c.is_nullable) AS nullable,
  CASE WHEN c.is_identity = 1 OR c.is_computed = 1 OR c.generated_always_type > 0 OR c.system_type_id = 189 THEN 1 ELSE 0 END AS given,
  CASE WHEN c.default_object_id <> 0 THEN 1 ELSE 0 END AS defaulted,
  CASE WHEN EXISTS (SELECT 1 FROM sys.check_constraints AS k WHERE k.parent_object_id = c.object_id AND k.is_disabled = 0
    AND CHARINDEX(N'isjson(' + QUOTENAME(c.name) COLLATE DATABASE_DEFAULT + N')', k.[definition] COLLATE DATABASE_DEFAULT) = 2) THEN 1 ELSE 0 END AS is_json,
  COALESCE(HAS_PERMS_BY_NAME(@describe_full, 'OBJECT', 'SELECT', c.name, 'COLUMN'), 0) AS may_select,
  COALESCE(HAS_PERMS_BY_NAME(@describe_full, 'OBJECT', 'UPDATE', c.name, 'COLUMN'), 0) AS may_update, COALESCE(d.[definition], N'') AS default_value,
  COALESCE(m.[definition], N'') AS computed
FROM sys.columns AS c
INNER JOIN sys.types AS u ON u.user_type_id = c.user_type_id
LEFT JOIN sys.types AS b ON b.user_type_id = c.system_type_id
LEFT JOIN sys.default_constraints AS d ON d.object_id = c.default_object_id
LEFT JOIN sys.computed_columns AS m ON m.object_id = c.object_id AND m.column_id = c.column_id
WHERE c.object_id = @describe_table
ORDER BY c.column_id;
SELECT i.name, CONVERT(int, i.is_unique) AS one, CONVERT(int, i.has_filter) AS filtered, COALESCE(i.filter_definition, N'') AS filter, c.name AS part,
  CONVERT(int, x.is_descending_key) AS descending, CONVERT(int, c.is_nullable) AS nullable, CONVERT(int, i.is_primary_key) AS main
FROM sys.indexes AS i
INNER JOIN sys.index_columns AS x ON x.object_id = i.object_id AND x.index_id = i.index_id AND x.key_ordinal > 0
INNER JOIN sys.columns AS c ON c.object_id = x.object_id AND c.column_id = x.column_id
WHERE i.object_id = @describe_table AND i.type IN (1, 2) AND i.is_disabled = 0 AND i.is_hypothetical = 0
ORDER BY i.is_primary_key DESC, i.index_id, x.key_ordinal;
SELECT t.name, CONVERT(int, t.is_instead_of_trigger) AS instead
FROM sys.triggers AS t
WHERE t.parent_id = @describe_table AND t.is_disabled = 0
ORDER BY t.name;
SELECT 'INSERT' AS need, COALESCE(HAS_PERMS_BY_NAME(@describe_full, 'OBJECT', 'INSERT'), 0) AS has
UNION ALL
SELECT 'DELETE' AS need, COALESCE(HAS_PERMS_BY_NAME(@describe_full, 'OBJECT', 'DELETE'), 0) AS has;
SELECT TOP (1000) CASE WHEN SCHEMA_NAME(t.schema_id) = SCHEMA_NAME() THEN t.name ELSE SCHEMA_NAME(t.schema_id) + N'.' + t.name END AS name
FROM sys.tables AS t
WHERE @describe_table IS NULL
ORDER BY t.name;
SELECT k.name, COALESCE(k.[definition], N'') AS rule_text
FROM sys.check_constraints AS k
WHERE k.parent_object_id = @describe_table AND k.is_disabled = 0
ORDER BY k.name;
SELECT 0 AS outside, k.name, k.object_id AS number, SCHEMA_NAME(o.schema_id) AS home, o.name AS other, c.name AS here, r.name AS there, 0 AS cascades, x.constraint_column_id AS place
FROM sys.foreign_keys AS k
INNER JOIN sys.foreign_key_columns AS x ON x.constraint_object_id = k.object_id
INNER JOIN sys.objects AS o ON o.object_id = k.referenced_object_id
INNER JOIN sys.columns AS c ON c.object_id = k.parent_object_id AND c.column_id = x.parent_column_id
INNER JOIN sys.columns AS r ON r.object_id = k.referenced_object_id AND r.column_id = x.referenced_column_id
WHERE k.parent_object_id = @describe_table AND k.is_disabled = 0
UNION ALL
SELECT 1 AS outside, k.name, k.object_id AS number, SCHEMA_NAME(o.schema_id) AS home, o.name AS other, c.name AS here, r.name AS there,
  CASE WHEN k.delete_referential_action = 0 THEN 0 ELSE 1 END AS cascades, x.constraint_column_id AS place
FROM sys.foreign_keys AS k
INNER JOIN sys.foreign_key_columns AS x ON x.constraint_object_id = k.object_id
INNER JOIN sys.objects AS o ON o.object_id = k.parent_object_id
INNER JOIN sys.columns AS c ON c.object_id = k.referenced_object_id AND c.column_id = x.referenced_column_id
INNER JOIN sys.columns AS r ON r.object_id = k.parent_object_id AND r.column_id = x.parent_column_id
WHERE k.referenced_object_id = @describe_table AND k.is_disabled = 0
ORDER BY outside, name, number, place;
