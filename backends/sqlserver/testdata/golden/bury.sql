-- parameters: @bury_jobs nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @bury TABLE (id bigint NOT NULL PRIMARY KEY, claim_max int NOT NULL, retention_dead_ms bigint NULL, message nvarchar(max) NOT NULL);
INSERT INTO @bury (id, claim_max, retention_dead_ms, message)
SELECT x.id, x.claim_max, x.retention_dead_ms, x.message
FROM OPENJSON(@bury_jobs) WITH (id bigint, claim_max int, retention_dead_ms bigint, message nvarchar(max)) AS x;
DECLARE @bury_micros bigint = DATEDIFF_BIG(microsecond, '1970-01-01', @now);
DECLARE @buried TABLE (id bigint NOT NULL PRIMARY KEY, fence bigint NOT NULL, attempts int NOT NULL, [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
UPDATE j SET state = 'dead', attempts = j.attempts + 1,
  fence = CASE WHEN j.fence >= @bury_micros THEN j.fence + 1 ELSE @bury_micros END,
  claim_max = COALESCE(j.max_attempts, b.claim_max), retention_dead_ms = b.retention_dead_ms, finished_at = @now,
  prune_at = DATEADD(second, CONVERT(int, b.retention_dead_ms / 1000), DATEADD(millisecond, CONVERT(int, b.retention_dead_ms % 1000), @now)),
  last_error = b.message, group_name = j.admitted_group, admitted_group = NULL
OUTPUT inserted.id, inserted.fence, inserted.attempts, inserted.[key], inserted.queue, inserted.group_name INTO @buried
FROM @bury AS b, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = b.id AND j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT y.id, y.fence, y.attempts, 'too_large', b.message, @now
FROM @buried AS y INNER JOIN @bury AS b ON b.id = y.id;
IF EXISTS (SELECT 1 FROM @buried AS y WHERE y.[key] IS NOT NULL)
  UPDATE k SET state = 'dead'
  FROM @buried AS y INNER JOIN [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = y.id
  WHERE y.[key] IS NOT NULL
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @buried);
SELECT DISTINCT y.queue, y.group_name FROM @buried AS y WHERE y.group_name IS NOT NULL;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
