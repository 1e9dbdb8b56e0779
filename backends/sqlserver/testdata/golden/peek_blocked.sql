-- parameters: @waiting_queue varchar(128), @waiting_group nvarchar(256), @waiting_priority smallint, @waiting_position bigint, @waiting_limit bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @waiting_left bigint = @waiting_limit;
SELECT TOP (@waiting_left) j.id, DATALENGTH(j.payload) AS size
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @waiting_queue AND j.group_name = @waiting_group
  AND j.priority = @waiting_priority AND j.position > @waiting_position
ORDER BY j.position
OPTION (KEEPFIXED PLAN);
SET @waiting_left = @waiting_left - @@ROWCOUNT;
SELECT TOP (@waiting_left) j.id, DATALENGTH(j.payload) AS size
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @waiting_queue AND j.group_name = @waiting_group
  AND j.priority < @waiting_priority
ORDER BY j.priority DESC, j.position
OPTION (KEEPFIXED PLAN);
SET @waiting_left = @waiting_left - @@ROWCOUNT;
SELECT TOP (@waiting_left) j.id, DATALENGTH(j.payload) AS size
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @waiting_queue AND j.group_name > @waiting_group
ORDER BY j.group_name, j.priority DESC, j.position
OPTION (KEEPFIXED PLAN);
