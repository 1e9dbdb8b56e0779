-- parameters: @ack_leases nvarchar(max), @ack_blob varbinary(max), @ack_all bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @ack TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL, start bigint NULL, size bigint NULL);
INSERT INTO @ack (n, id, sidecar, number, start, size)
SELECT x.n, x.id, x.sidecar, x.number, x.start, x.size
FROM OPENJSON(@ack_leases) WITH (n int, id bigint, sidecar bigint, number bigint, start bigint, size bigint) AS x;
DECLARE @acked TABLE (
  id bigint NOT NULL PRIMARY KEY, state varchar(9) COLLATE Latin1_General_100_BIN2 NOT NULL,
  [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, last_error nvarchar(max) NULL);
DELETE j
OUTPUT deleted.id, deleted.state, deleted.[key], deleted.last_error
INTO @acked
FROM @ack AS a, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = a.id AND j.token_sidecar = a.sidecar AND j.token_number = a.number AND j.retention_done_ms IS NULL AND (j.batch IS NULL AND j.admitted_group IS NULL AND (j.key_state IS NULL OR j.key_state = 'start') OR @ack_all = 1)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF EXISTS (SELECT 1 FROM @ack AS a WHERE NOT EXISTS (SELECT 1 FROM @acked AS d WHERE d.id = a.id))
  UPDATE j SET state = 'done', finished_at = @now,
    prune_at = DATEADD(second, CONVERT(int, j.retention_done_ms / 1000), DATEADD(millisecond, CONVERT(int, j.retention_done_ms % 1000), @now)),
    result = SUBSTRING(@ack_blob, a.start + 1, a.size), attempts = j.attempts + j.prefetched, prefetched = 0, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL,
  deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL
  OUTPUT inserted.id, inserted.state, inserted.[key], inserted.last_error
  INTO @acked
  FROM @ack AS a, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
  WHERE j.id = a.id AND j.token_sidecar = a.sidecar AND j.token_number = a.number AND j.retention_done_ms IS NOT NULL AND (j.batch IS NULL AND j.admitted_group IS NULL AND (j.key_state IS NULL OR j.key_state = 'start') OR @ack_all = 1)
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @ack_failures bigint = 0;
IF EXISTS (SELECT 1 FROM @acked AS d WHERE d.state = 'claimed' AND d.last_error IS NOT NULL)
  SET @ack_failures = 1000;
WHILE @ack_failures = 1000
BEGIN
  DELETE f
  FROM (
    SELECT TOP (1000) o.job, o.fence
    FROM @acked AS d INNER JOIN [qsidecar].qsidecar_failures AS o WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON o.job = d.id
    WHERE d.state = 'claimed' AND d.last_error IS NOT NULL
  ) AS x INNER JOIN [qsidecar].qsidecar_failures AS f WITH (ROWLOCK, FORCESEEK) ON f.job = x.job AND f.fence = x.fence
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
  SET @ack_failures = @@ROWCOUNT;
END;
IF EXISTS (SELECT 1 FROM @acked AS d WHERE d.[key] IS NOT NULL)
  UPDATE k SET state = 'done'
  FROM @acked AS d INNER JOIN [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = d.id
  WHERE d.[key] IS NOT NULL
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @acked);
SELECT a.n FROM @ack AS a INNER JOIN @acked AS d ON d.id = a.id;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
