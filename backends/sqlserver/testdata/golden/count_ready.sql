-- parameters: @count_queue varchar(128)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT COUNT_BIG(*) AS n FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @count_queue
OPTION (KEEPFIXED PLAN);
