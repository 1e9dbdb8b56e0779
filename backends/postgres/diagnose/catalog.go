package diagnose

// This file holds the queries of Describe. Each query names its columns as the fields of the
// type that it fills; see rows. The parameters are the schema and the name of the table.

// baseJoin joins the type below the domains of column a, as base, and its row of pg_type,
// as b. A domain can be based on another domain. An explicit cast to a domain truncates a
// value like a cast to its base type. Elements of an array aren't truncated: the input
// function of an array rejects values that are too long.
const baseJoin = `
CROSS JOIN LATERAL (WITH RECURSIVE down AS (
  SELECT a.atttypid AS oid, a.atttypmod AS typmod, 0 AS n
  UNION ALL
  SELECT t.typbasetype, t.typtypmod, n + 1 FROM down JOIN pg_catalog.pg_type t ON t.oid = down.oid AND t.typtype = 'd'
) SELECT oid, typmod FROM down ORDER BY n DESC LIMIT 1) base
JOIN pg_catalog.pg_type b ON b.oid = base.oid`

// schemaSQL finds the schema of a name without one: the first that has it in the search path $1.
const schemaSQL = `
SELECT n.nspname AS "Name" FROM unnest($1::text[]) WITH ORDINALITY AS x (name, n)
JOIN pg_catalog.pg_namespace n ON n.nspname = x.name JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = $2
ORDER BY x.n LIMIT 1`

// columnsSQL reads the columns.
const columnsSQL = `
SELECT n.nspname AS "Schema", c.relname AS "Table", c.relkind AS "Relkind", a.attname AS "Name",
  format_type(base.oid, base.typmod) AS "Type", b.typname AS "Typname", b.typcategory AS "Category",
  NOT a.attnotnull AND NOT (SELECT t.typnotnull FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid) AS "Nullable", a.atthasdef OR a.attidentity <> '' AS "Default", a.attgenerated <> '' OR a.attidentity = 'a' AS "Generated",
  CASE b.typname WHEN 'name' THEN 63 WHEN 'char' THEN 1 WHEN 'varchar' THEN greatest(base.typmod, 4) - 4 WHEN 'bpchar' THEN greatest(base.typmod, 4) - 4 ELSE 0 END AS "Chars"
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
` + baseJoin + `
WHERE c.relname = $2 AND n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
ORDER BY a.attnum`

// uniqueSQL reads the unique keys without nullable columns, the primary key first.
const uniqueSQL = `
SELECT ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.n <= i.indnkeyatts ORDER BY k.n) AS "Columns"
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) AND NOT a.attnotnull)
ORDER BY i.indisprimary DESC, i.indexrelid`

// tablesSQL finds the tables. $1 is the search path.
const tablesSQL = `
SELECT CASE WHEN n.nspname = ANY($1::text[]) THEN c.relname::text ELSE n.nspname || '.' || c.relname END AS "Name"
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\_t%'
ORDER BY n.nspname <> ALL($1::text[]), 1 LIMIT 1000`

// indexesSQL reads the indexes that can serve a claim: valid B-trees of whole columns,
// sorted as a plain ORDER BY sorts.
const indexesSQL = `
SELECT c.relname AS "Name", coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), '') AS "Only",
  ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.n <= i.indnkeyatts ORDER BY k.n) AS "Columns",
  ARRAY(SELECT o & 1 = 1 FROM unnest(i.indoption::int2[]) WITH ORDINALITY AS k (o, n) WHERE k.n <= i.indnkeyatts ORDER BY k.n) AS "Descending"
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = c.relam AND m.amname = 'btree'
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = $1 AND t.relname = $2 AND i.indisvalid AND i.indexprs IS NULL
  AND NOT EXISTS (SELECT FROM unnest(i.indoption::int2[]) o WHERE o NOT IN (0, 3))
  AND NOT EXISTS (SELECT FROM unnest(i.indclass::oid[]) x JOIN pg_catalog.pg_opclass p ON p.oid = x WHERE NOT p.opcdefault)
  AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (attnum, coll)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.coll <> 0 AND k.coll <> a.attcollation)
ORDER BY i.indisprimary DESC, c.relname`

// triggersSQL reads the names of the triggers and rules that run with a change of a row.
const triggersSQL = `
SELECT t.tgname AS "Name" FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND NOT t.tgisinternal AND t.tgenabled NOT IN ('D', 'R')
UNION ALL
SELECT r.rulename FROM pg_catalog.pg_rewrite r
JOIN pg_catalog.pg_class c ON c.oid = r.ev_class JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p') AND r.ev_enabled NOT IN ('D', 'R')
ORDER BY 1`

// notifyingSQL reads the texts of the triggers and rules that can send a notification.
const notifyingSQL = `
SELECT p.prosrc AS "Name" FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND NOT t.tgisinternal AND t.tgenabled NOT IN ('D', 'R') AND p.prosrc ILIKE '%notify%'
UNION ALL
SELECT pg_catalog.pg_get_ruledef(r.oid) FROM pg_catalog.pg_rewrite r
JOIN pg_catalog.pg_class c ON c.oid = r.ev_class JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p') AND r.ev_enabled NOT IN ('D', 'R') AND pg_catalog.pg_get_ruledef(r.oid) ILIKE '%notify%'
ORDER BY 1`

// rightsSQL reads which rights the login has neither on the table nor on any of its
// columns, and whether the table is unlogged or has row level security.
const rightsSQL = `
SELECT ARRAY(SELECT p FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p WHERE NOT CASE p
    WHEN 'DELETE' THEN has_table_privilege(c.oid, p) ELSE has_any_column_privilege(c.oid, p) END) AS "Denied",
  c.relpersistence = 'u' AS "Unlogged", row_security_active(c.oid) AS "Filtered",
  '"' || replace(current_user, '"', '""') || '"' AS "Grantee",
  CASE WHEN has_schema_privilege(n.oid, 'USAGE') THEN '' ELSE format('USAGE ON SCHEMA %I', n.nspname) END AS "Lacks"
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2`

// checksSQL reads the CHECK conditions.
const checksSQL = `
SELECT pg_catalog.pg_get_constraintdef(k.oid) AS "Name" FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND k.contype = 'c' ORDER BY k.conname`

// limitsSQL reads for each column the values of an enum, the digits of a number, which of
// the table's rights the column lacks, and its default. An identity column needs no right on its
// sequence: https://www.postgresql.org/docs/current/sql-createtable.html.
const limitsSQL = `
SELECT a.attname AS "Name", b.typname AS "Typname",
  ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = b.oid ORDER BY e.enumsortorder) AS "Values",
  CASE WHEN b.typname = 'numeric' AND base.typmod >= 4 THEN ((base.typmod - 4) >> 16) - ((base.typmod - 4) & 65535) ELSE 0 END AS "Digits",
  ARRAY(SELECT p FROM unnest('{SELECT,INSERT,UPDATE}'::text[]) p
    WHERE has_any_column_privilege(c.oid, p) AND NOT has_column_privilege(c.oid, a.attnum, p)) AS "Denied",
  coalesce(CASE WHEN a.attgenerated = '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END, '') AS "Given",
  coalesce((SELECT 'USAGE ON SEQUENCE ' || s.oid::pg_catalog.regclass FROM pg_catalog.pg_depend x JOIN pg_catalog.pg_class s ON s.oid = x.refobjid
    WHERE x.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND x.objid = d.oid AND x.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
      AND CASE s.relkind WHEN 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE, UPDATE') END LIMIT 1), '') AS "Lacks",
  coalesce(CASE WHEN a.attgenerated <> '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END, '') AS "Computed"
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
` + baseJoin + `
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE n.nspname = $1 AND c.relname = $2
ORDER BY a.attnum`

// constraintsSQL reads the constraints. A CHECK of a domain is about the column VALUE.
const constraintsSQL = `
WITH t AS (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2),
k AS (SELECT k.* FROM pg_catalog.pg_constraint k WHERE pg_catalog.pg_get_constraintdef(k.oid) NOT LIKE '%NOT ENFORCED')
SELECT 'check' AS "Kind", k.conname::text AS "Name", pg_catalog.pg_get_expr(k.conbin, k.conrelid) AS "Text", '{}'::text[] AS "Columns", '' AS "Table", '{}'::text[] AS "Others", false AS "Cascades"
FROM k JOIN t ON t.oid = k.conrelid WHERE k.contype = 'c'
UNION ALL
SELECT 'check', k.conname::text, pg_catalog.regexp_replace(pg_catalog.pg_get_expr(k.conbin, 0), '\mVALUE\M', pg_catalog.quote_ident(a.attname), 'g'), '{}', '', '{}', false
FROM t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped JOIN k ON k.contypid = a.atttypid AND k.contype = 'c'
UNION ALL
SELECT 'unique', c.relname::text, coalesce(pg_catalog.pg_get_expr(i.indpred, i.indrelid), ''),
  ARRAY(SELECT pg_catalog.pg_get_indexdef(i.indexrelid, n, true) FROM pg_catalog.generate_series(1, i.indnkeyatts) n), '', '{}', false
FROM pg_catalog.pg_index i JOIN t ON t.oid = i.indrelid JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE (i.indisunique OR i.indisexclusion) AND i.indisvalid AND NOT i.indisprimary
UNION ALL
SELECT 'foreign key', k.conname::text, '', ARRAY(SELECT pg_catalog.quote_ident(a.attname) FROM unnest(k.conkey) WITH ORDINALITY AS x (num, n) JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = x.num ORDER BY x.n), (SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = k.confrelid), ARRAY(SELECT pg_catalog.quote_ident(a.attname) FROM unnest(k.confkey) WITH ORDINALITY AS x (num, n) JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = x.num ORDER BY x.n), false
FROM k JOIN t ON t.oid = k.conrelid WHERE k.contype = 'f' AND k.conparentid = 0
UNION ALL
SELECT 'referenced', k.conname::text, '', ARRAY(SELECT pg_catalog.quote_ident(a.attname) FROM unnest(k.confkey) WITH ORDINALITY AS x (num, n) JOIN pg_catalog.pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = x.num ORDER BY x.n), (SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = k.conrelid), ARRAY(SELECT pg_catalog.quote_ident(a.attname) FROM unnest(k.conkey) WITH ORDINALITY AS x (num, n) JOIN pg_catalog.pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = x.num ORDER BY x.n), k.confdeltype IN ('c', 'n', 'd')
FROM k JOIN t ON t.oid = k.confrelid WHERE k.contype = 'f' AND k.conparentid = 0
ORDER BY 1, 2`
