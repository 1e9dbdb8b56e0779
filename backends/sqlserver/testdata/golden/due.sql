-- parameters: @due_limit bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT TOP (@due_limit) 0 AS n, CASE WHEN j.deadline <= j.due_at THEN 'timed_out' ELSE 'lease_ended' END AS cause, j.id, j.queue, j.token_host, j.token_number, CASE WHEN j.[key] IS NULL THEN 0 ELSE 1 END AS keyed, j.priority, j.position,
  j.fence, j.attempts, j.claim_max, j.losses, j.backoff_ms, j.backoff_max_ms, j.ahead, j.unrecorded
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_due), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.due_at IS NOT NULL AND j.due_at <= @now
ORDER BY j.due_at;
