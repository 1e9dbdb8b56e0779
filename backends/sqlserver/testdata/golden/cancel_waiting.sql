-- parameters: @cancel_queue varchar(128), @cancel_ids nvarchar(max), @cancel_keep bigint, @cancel_message nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @cancel TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @cancel (id)
SELECT x.id FROM OPENJSON(@cancel_ids) WITH (id bigint) AS x;
DECLARE @cancel_micros bigint = DATEDIFF_BIG(microsecond, '1970-01-01', @now);
DECLARE @cancelled TABLE (id bigint NOT NULL PRIMARY KEY, fence bigint NOT NULL, attempts int NOT NULL,
  [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL);
UPDATE j SET state = 'dead', run_at = NULL, fence = CASE WHEN j.fence >= @cancel_micros THEN j.fence + 1 ELSE @cancel_micros END,
  retention_dead_ms = COALESCE(j.retention_dead_ms, NULLIF(@cancel_keep, 0)), finished_at = @now,
  prune_at = DATEADD(second, CONVERT(int, COALESCE(j.retention_dead_ms, NULLIF(@cancel_keep, 0)) / 1000),
    DATEADD(millisecond, CONVERT(int, COALESCE(j.retention_dead_ms, NULLIF(@cancel_keep, 0)) % 1000), @now)),
  last_error = @cancel_message
OUTPUT inserted.id, inserted.fence, inserted.attempts, inserted.[key] INTO @cancelled
FROM @cancel AS b, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = b.id AND j.queue = @cancel_queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT y.id, y.fence, y.attempts, 'cancelled', @cancel_message, @now
FROM @cancelled AS y;
UPDATE k SET state = 'dead'
FROM @cancelled AS y INNER JOIN [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = y.id
WHERE y.[key] IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @cancelled);
SELECT COUNT_BIG(*) AS cancelled FROM @cancelled AS y;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
