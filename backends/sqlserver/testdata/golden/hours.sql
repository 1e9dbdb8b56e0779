-- parameters: @hours_queue varchar(128)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT h.hour, h.queue, h.ready,
  h.enqueued, h.acked, h.failed, h.run_1ms, h.run_5ms, h.run_25ms, h.run_100ms, h.run_250ms, h.run_500ms,
  h.run_1s, h.run_2500ms, h.run_5s, h.run_10s, h.run_30s, h.run_1m, h.run_5m, h.run_30m, h.run_1h, h.run_more
FROM [qsidecar].qsidecar_history AS h
WHERE (@hours_queue = '' OR h.queue = @hours_queue)
ORDER BY h.hour, h.queue;
