SET LOCK_TIMEOUT 5000;
DECLARE @highest bigint = (
  SELECT MAX(x.id)
  FROM (
    SELECT MAX(j.id) AS id FROM [qsidecar].qsidecar_jobs AS j WITH (READUNCOMMITTED)
    UNION ALL
    SELECT MAX(j.position) AS id FROM [qsidecar].qsidecar_jobs AS j WITH (READUNCOMMITTED)
    UNION ALL
    SELECT MAX(k.job) AS id FROM [qsidecar].qsidecar_keys AS k WITH (READUNCOMMITTED)
    UNION ALL
    SELECT MAX(f.job) AS id FROM [qsidecar].qsidecar_failures AS f WITH (READUNCOMMITTED)
  ) AS x);
DECLARE @size bigint = (
  SELECT (@highest - CONVERT(bigint, q.current_value)) / 1000 + 10
  FROM sys.sequences AS q
  WHERE q.object_id = OBJECT_ID(N'[qsidecar].qsidecar_sequence') AND CONVERT(bigint, q.current_value) <= @highest);
DECLARE @drawn sql_variant;
IF @size > 0
  EXEC sys.sp_sequence_get_range @sequence_name = N'[qsidecar].qsidecar_sequence', @range_size = @size, @range_first_value = @drawn OUTPUT;
SELECT CONVERT(bigint, q.current_value) AS last
FROM sys.sequences AS q
WHERE q.object_id = OBJECT_ID(N'[qsidecar].qsidecar_sequence');
