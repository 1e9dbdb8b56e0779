-- parameters: 
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT COALESCE(q.max_claimed, 0) AS max_claimed, COALESCE(q.rate, 0) AS rate, COALESCE(q.rate_ms, 0) AS rate_ms, COALESCE(q.burst, 0) AS burst,
  COALESCE(q.group_limit, 0) AS group_limit, COALESCE(q.group_skips, 0) AS group_skips, COALESCE(q.group_ready, 0) AS group_ready, q.queue
FROM [qsidecar].qsidecar_queues AS q
WHERE q.max_claimed IS NOT NULL OR q.rate IS NOT NULL OR q.group_limit IS NOT NULL OR q.group_skips IS NOT NULL OR q.group_ready IS NOT NULL
ORDER BY q.queue;
