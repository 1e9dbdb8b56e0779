-- parameters: @late_limit bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT TOP (@late_limit) j.id, j.queue, CASE WHEN j.on_expiry = 'delete' THEN 1 ELSE 0 END AS removed
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_expiring), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.start_before IS NOT NULL AND j.claimed_at IS NULL AND j.finished_at IS NULL AND j.start_before <= @now
ORDER BY j.start_before
OPTION (KEEPFIXED PLAN);
