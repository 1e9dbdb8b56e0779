-- parameters: @slots_queue varchar(128), @slots_group nvarchar(256), @slots_limit bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT TOP (@slots_limit) j.id, j.state
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.admitted_group IS NOT NULL AND j.queue = @slots_queue AND j.admitted_group = @slots_group
ORDER BY j.id
OPTION (KEEPFIXED PLAN);
