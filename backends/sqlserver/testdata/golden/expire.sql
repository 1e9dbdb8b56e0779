-- parameters: @expire_jobs nvarchar(max), @expire_message nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @expire TABLE (id bigint NOT NULL PRIMARY KEY, dead_ms bigint NULL);
INSERT INTO @expire (id, dead_ms)
SELECT x.id, x.dead_ms FROM OPENJSON(@expire_jobs) WITH (id bigint, dead_ms bigint) AS x;
DECLARE @expire_micros bigint = DATEDIFF_BIG(microsecond, '1970-01-01', @now);
DECLARE @expired TABLE (id bigint NOT NULL PRIMARY KEY, fence bigint NOT NULL, attempts int NOT NULL, [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
UPDATE j SET state = 'dead', run_at = NULL, fence = CASE WHEN j.fence >= @expire_micros THEN j.fence + 1 ELSE @expire_micros END,
  retention_dead_ms = COALESCE(b.dead_ms, j.retention_dead_ms), finished_at = @now,
  prune_at = DATEADD(second, CONVERT(int, COALESCE(b.dead_ms, j.retention_dead_ms) / 1000),
    DATEADD(millisecond, CONVERT(int, COALESCE(b.dead_ms, j.retention_dead_ms) % 1000), @now)),
  last_error = @expire_message, group_name = COALESCE(j.group_name, j.admitted_group), admitted_group = NULL
OUTPUT inserted.id, inserted.fence, inserted.attempts, inserted.[key], inserted.queue, inserted.group_name INTO @expired
FROM @expire AS b, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = b.id AND j.state IN ('ready', 'scheduled')
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT y.id, y.fence, y.attempts, 'expired', @expire_message, @now
FROM @expired AS y;
IF EXISTS (SELECT 1 FROM @expired AS y WHERE y.[key] IS NOT NULL)
  UPDATE k SET state = 'dead'
  FROM @expired AS y INNER JOIN [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = y.id
  WHERE y.[key] IS NOT NULL
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @expired);
SELECT DISTINCT y.queue, y.group_name FROM @expired AS y WHERE y.group_name IS NOT NULL;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
