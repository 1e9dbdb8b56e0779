-- parameters: @held_host bigint, @held_after bigint, @held_limit bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT TOP (@held_limit) j.id, j.token_sidecar, j.token_number, j.queue, CASE WHEN j.lease_ms IS NULL THEN 0 ELSE 1 END AS timed
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK)
WHERE j.state = 'claimed' AND j.owner = @held_host AND j.id > @held_after
ORDER BY j.id
OPTION (KEEPFIXED PLAN);
