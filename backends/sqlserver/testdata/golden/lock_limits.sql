-- parameters: @limited_queue varchar(128), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
UPDATE [qsidecar].qsidecar_queues SET paused = paused WHERE queue = @limited_queue;
IF @@ROWCOUNT = 0
  INSERT INTO [qsidecar].qsidecar_queues (queue, paused) VALUES (@limited_queue, 0);
SET @wrote = @wrote + 1;
SELECT COALESCE(q.max_claimed, 0) AS max_claimed, COALESCE(q.rate, 0) AS rate, COALESCE(q.rate_ms, 0) AS rate_ms, COALESCE(q.burst, 0) AS burst,
  COALESCE(q.group_limit, 0) AS group_limit, COALESCE(q.group_skips, 0) AS group_skips, COALESCE(q.group_ready, 0) AS group_ready FROM [qsidecar].qsidecar_queues AS q WHERE q.queue = @limited_queue;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
