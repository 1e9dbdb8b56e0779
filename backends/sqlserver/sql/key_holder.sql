-- The job that has a key.
-- @key_queue varchar(128)
-- @key_name nvarchar(255)
-- sets 1
SELECT k.job
FROM {s}.qsidecar_keys AS k WITH (FORCESEEK)
WHERE k.queue = @key_queue AND k.name = CONVERT(varbinary(510), @key_name);
