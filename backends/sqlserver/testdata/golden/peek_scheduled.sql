-- parameters: @peek_queue varchar(128), @peek_at datetime2(6), @peek_id bigint, @peek_limit bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT TOP (@peek_limit) j.id, DATALENGTH(j.payload) AS size
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_delayed), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.run_at IS NOT NULL AND j.queue = @peek_queue
  AND j.run_at >= @peek_at AND (j.run_at > @peek_at OR j.id > @peek_id)
ORDER BY j.run_at, j.id
OPTION (KEEPFIXED PLAN);
