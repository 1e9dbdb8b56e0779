-- parameters: @states_queue varchar(128), @states_ids nvarchar(max)
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @states TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @states (id)
SELECT x.id FROM OPENJSON(@states_ids) WITH (id bigint) AS x;
SELECT j.id, CASE WHEN j.run_at IS NOT NULL THEN 'scheduled' WHEN j.state = 'ready' AND j.group_name IS NOT NULL THEN 'blocked' ELSE j.state END AS state, COALESCE(j.group_name, j.admitted_group, N'') AS group_name, CASE WHEN j.state = 'dead' AND EXISTS (
    SELECT 1 FROM [qsidecar].qsidecar_failures AS f WITH (FORCESEEK) WHERE f.job = j.id AND f.fence = j.fence AND f.cause = 'cancelled') THEN 1 ELSE 0 END AS cancelled
FROM @states AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @states_queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
