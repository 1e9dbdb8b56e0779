-- parameters: @peek_queue varchar(128), @peek_priority smallint, @peek_position bigint, @peek_limit bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @peek_left bigint = @peek_limit;
SELECT TOP (@peek_left) j.id, DATALENGTH(j.payload) AS size
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @peek_queue AND j.priority = @peek_priority AND j.position > @peek_position
ORDER BY j.position
OPTION (KEEPFIXED PLAN);
SET @peek_left = @peek_left - @@ROWCOUNT;
SELECT TOP (@peek_left) j.id, DATALENGTH(j.payload) AS size
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @peek_queue AND j.priority < @peek_priority
ORDER BY j.priority DESC, j.position
OPTION (KEEPFIXED PLAN);
