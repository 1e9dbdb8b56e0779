-- parameters: @cancelled_owner bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT c.token_sidecar, c.token_number
FROM [qsidecar].qsidecar_cancelled AS c WITH (FORCESEEK)
WHERE c.owner = @cancelled_owner
OPTION (KEEPFIXED PLAN);
