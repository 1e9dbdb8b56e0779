-- Repairs the sequence that ids and positions share.

-- name: behind
-- The last number of the sequence, and the highest id that a table names. The ids are read
-- first, so a job that is stored at the same time has no later id. Each MAX reads the end of
-- an index.
SET LOCK_TIMEOUT 500;
DECLARE @highest bigint = (
  SELECT MAX(x.id)
  FROM (
    SELECT MAX(j.id) AS id FROM {s}.qsidecar_jobs AS j WITH (READPAST, READCOMMITTEDLOCK)
    UNION ALL
    SELECT MAX(k.job) AS id FROM {s}.qsidecar_keys AS k WITH (READPAST, READCOMMITTEDLOCK)
    UNION ALL
    SELECT MAX(f.job) AS id FROM {s}.qsidecar_failures AS f WITH (READPAST, READCOMMITTEDLOCK)
  ) AS x);
SELECT CONVERT(bigint, q.current_value) AS last, COALESCE(@highest, 0) AS highest
FROM sys.sequences AS q
WHERE q.object_id = OBJECT_ID(N'{s}.qsidecar_sequence');

-- name: draw
-- Draws numbers until the sequence is far above all ids and positions, because other sessions
-- can draw at the same time. That needs no more than the right UPDATE on the sequence:
-- https://learn.microsoft.com/sql/relational-databases/system-stored-procedures/sp-sequence-get-range-transact-sql
SET LOCK_TIMEOUT 5000;
DECLARE @highest bigint = (
  SELECT MAX(x.id)
  FROM (
    SELECT MAX(j.id) AS id FROM {s}.qsidecar_jobs AS j WITH (READUNCOMMITTED)
    UNION ALL
    SELECT MAX(j.position) AS id FROM {s}.qsidecar_jobs AS j WITH (READUNCOMMITTED)
    UNION ALL
    SELECT MAX(k.job) AS id FROM {s}.qsidecar_keys AS k WITH (READUNCOMMITTED)
    UNION ALL
    SELECT MAX(f.job) AS id FROM {s}.qsidecar_failures AS f WITH (READUNCOMMITTED)
  ) AS x);
DECLARE @size bigint = (
  SELECT (@highest - CONVERT(bigint, q.current_value)) / 1000 + 10
  FROM sys.sequences AS q
  WHERE q.object_id = OBJECT_ID(N'{s}.qsidecar_sequence') AND CONVERT(bigint, q.current_value) <= @highest);
DECLARE @drawn sql_variant;
IF @size > 0
  EXEC sys.sp_sequence_get_range @sequence_name = N'{s}.qsidecar_sequence', @range_size = @size, @range_first_value = @drawn OUTPUT;
SELECT CONVERT(bigint, q.current_value) AS last
FROM sys.sequences AS q
WHERE q.object_id = OBJECT_ID(N'{s}.qsidecar_sequence');
