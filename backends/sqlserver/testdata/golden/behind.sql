SET LOCK_TIMEOUT 500;
DECLARE @highest bigint = (
  SELECT MAX(x.id)
  FROM (
    SELECT MAX(j.id) AS id FROM [qsidecar].qsidecar_jobs AS j WITH (READPAST, READCOMMITTEDLOCK)
    UNION ALL
    SELECT MAX(k.job) AS id FROM [qsidecar].qsidecar_keys AS k WITH (READPAST, READCOMMITTEDLOCK)
    UNION ALL
    SELECT MAX(f.job) AS id FROM [qsidecar].qsidecar_failures AS f WITH (READPAST, READCOMMITTEDLOCK)
  ) AS x);
SELECT CONVERT(bigint, q.current_value) AS last, COALESCE(@highest, 0) AS highest
FROM sys.sequences AS q
WHERE q.object_id = OBJECT_ID(N'[qsidecar].qsidecar_sequence');
