-- parameters: @view_queue varchar(128), @view_ids nvarchar(max)
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @view TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY);
INSERT INTO @view (n, id)
SELECT x.n, x.id FROM OPENJSON(@view_ids) WITH (n int, id bigint) AS x;
SELECT j.id, j.queue, CASE WHEN j.run_at IS NOT NULL THEN 'scheduled' WHEN j.state = 'ready' AND j.group_name IS NOT NULL THEN 'blocked' ELSE j.state END AS state,
  j.payload, j.priority, j.attempts, COALESCE(j.claim_max, j.max_attempts, 0) AS claim_max, j.enqueued_at, j.run_at, j.claimed_at, j.finished_at,
  COALESCE(j.worker, N'') AS worker, COALESCE(j.[key], N'') AS name, COALESCE(j.headers, N'') AS headers, j.result,
  COALESCE(j.progress, 0) AS progress, j.start_before, COALESCE(j.group_name, j.admitted_group, N'') AS group_name
FROM @view AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = x.id
WHERE j.queue = @view_queue
ORDER BY x.n
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT f.job, f.attempt, f.cause, f.message, f.at
FROM @view AS x INNER JOIN [qsidecar].qsidecar_failures AS f WITH (FORCESEEK) ON f.job = x.id
ORDER BY f.job, f.fence
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
