-- The indexes of the tables.
SELECT i.name, CONVERT(int, i.is_disabled) AS disabled
FROM sys.indexes AS i
WHERE i.object_id IN (OBJECT_ID(N'{s}.qsidecar_jobs'), OBJECT_ID(N'{s}.qsidecar_keys')) AND i.name IS NOT NULL;
