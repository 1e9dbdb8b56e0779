-- The indexes of the tables.
SELECT i.name, CONVERT(int, i.is_disabled) AS disabled, CONVERT(int, i.allow_row_locks) AS row_locks
FROM sys.indexes AS i
WHERE i.object_id IN (OBJECT_ID(N'{s}.qsidecar_jobs'), OBJECT_ID(N'{s}.qsidecar_keys'), OBJECT_ID(N'{s}.qsidecar_leases')) AND i.name IS NOT NULL;
