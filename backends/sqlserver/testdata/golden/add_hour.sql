-- parameters: @hour_hour bigint, @hour_queue varchar(128), @hour_ready bigint, @hour_enqueued bigint, @hour_acked bigint, @hour_failed bigint, @hour_run_1ms bigint, @hour_run_5ms bigint, @hour_run_25ms bigint, @hour_run_100ms bigint, @hour_run_250ms bigint, @hour_run_500ms bigint, @hour_run_1s bigint, @hour_run_2500ms bigint, @hour_run_5s bigint, @hour_run_10s bigint, @hour_run_30s bigint, @hour_run_1m bigint, @hour_run_5m bigint, @hour_run_30m bigint, @hour_run_1h bigint, @hour_run_more bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
UPDATE h SET ready = CASE WHEN h.ready < @hour_ready THEN @hour_ready ELSE h.ready END,
  enqueued = h.enqueued + @hour_enqueued, acked = h.acked + @hour_acked, failed = h.failed + @hour_failed,
  run_1ms = h.run_1ms + @hour_run_1ms, run_5ms = h.run_5ms + @hour_run_5ms,
  run_25ms = h.run_25ms + @hour_run_25ms, run_100ms = h.run_100ms + @hour_run_100ms,
  run_250ms = h.run_250ms + @hour_run_250ms, run_500ms = h.run_500ms + @hour_run_500ms,
  run_1s = h.run_1s + @hour_run_1s, run_2500ms = h.run_2500ms + @hour_run_2500ms,
  run_5s = h.run_5s + @hour_run_5s, run_10s = h.run_10s + @hour_run_10s, run_30s = h.run_30s + @hour_run_30s,
  run_1m = h.run_1m + @hour_run_1m, run_5m = h.run_5m + @hour_run_5m, run_30m = h.run_30m + @hour_run_30m,
  run_1h = h.run_1h + @hour_run_1h, run_more = h.run_more + @hour_run_more
FROM [qsidecar].qsidecar_history AS h WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
WHERE h.hour = @hour_hour AND h.queue = @hour_queue
OPTION (LOOP JOIN, KEEPFIXED PLAN);
IF @@ROWCOUNT = 0
  INSERT INTO [qsidecar].qsidecar_history (hour, queue, ready,
  enqueued, acked, failed, run_1ms, run_5ms, run_25ms, run_100ms, run_250ms, run_500ms, run_1s, run_2500ms,
  run_5s, run_10s, run_30s, run_1m, run_5m, run_30m, run_1h, run_more)
  VALUES (@hour_hour, @hour_queue, @hour_ready,
  @hour_enqueued, @hour_acked, @hour_failed, @hour_run_1ms, @hour_run_5ms, @hour_run_25ms, @hour_run_100ms,
  @hour_run_250ms, @hour_run_500ms, @hour_run_1s, @hour_run_2500ms, @hour_run_5s, @hour_run_10s,
  @hour_run_30s, @hour_run_1m, @hour_run_5m, @hour_run_30m, @hour_run_1h, @hour_run_more);
SET @wrote = @wrote + 1;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
