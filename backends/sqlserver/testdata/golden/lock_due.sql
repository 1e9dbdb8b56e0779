-- parameters: @due_limit bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT TOP (@due_limit) CASE WHEN j.deadline <= j.due_at THEN 'timed_out' ELSE 'lease_ended' END AS cause, j.id, j.queue, COALESCE(j.[key], N'') AS name, j.priority, j.position, j.fence,
  j.token_sidecar, j.token_number, j.owner, COALESCE(j.lease_ms, 0) AS lease_ms, j.attempts, j.claim_max, j.losses, j.backoff_ms, j.backoff_max_ms,
  j.prefetched, j.prefetch_losses, CASE WHEN j.retention_done_ms IS NULL THEN 0 ELSE 1 END AS kept, CASE WHEN j.worker IS NULL THEN 0 ELSE 1 END AS has_worker,
  COALESCE(j.batch, 0) AS batch, CASE WHEN j.key_state = 'pending' THEN 1 ELSE 0 END AS pending, COALESCE(j.admitted_group, N'') AS admitted_group
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_due), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.due_at IS NOT NULL AND j.due_at <= @now
ORDER BY j.due_at
OPTION (KEEPFIXED PLAN);
