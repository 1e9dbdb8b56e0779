-- parameters: @place_queue varchar(128), @place_id bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT j.priority, j.position, j.run_at, j.claimed_at, j.finished_at, COALESCE(j.group_name, j.admitted_group, N'') AS group_name
FROM [qsidecar].qsidecar_jobs AS j
WHERE j.id = @place_id AND j.queue = @place_queue
OPTION (KEEPFIXED PLAN);
