-- parameters: @limit_queue varchar(128), @limit_claimed bigint, @limit_rate bigint, @limit_rate_ms bigint, @limit_burst bigint, @limit_group bigint, @limit_skips bigint, @limit_ready bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
UPDATE [qsidecar].qsidecar_queues SET max_claimed = NULLIF(@limit_claimed, 0), rate = NULLIF(@limit_rate, 0), rate_ms = NULLIF(@limit_rate_ms, 0),
  burst = NULLIF(@limit_burst, 0), group_limit = NULLIF(@limit_group, 0), group_skips = NULLIF(CONVERT(tinyint, @limit_skips), 0),
  group_ready = NULLIF(@limit_ready, 0), limits_at = @now
WHERE queue = @limit_queue;
SET @wrote = @wrote + 1;
SELECT CASE WHEN EXISTS (
  SELECT 1 FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @limit_queue) THEN 1 ELSE 0 END AS ready
OPTION (KEEPFIXED PLAN);
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
