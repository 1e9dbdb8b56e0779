-- parameters: @find_limit bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT TOP (@find_limit) j.id, j.queue
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_prunable), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.prune_at IS NOT NULL AND j.prune_at <= @now
ORDER BY j.prune_at
OPTION (KEEPFIXED PLAN);
