-- Finds scheduled jobs that are due, in their order. It runs only if the database has
-- refused a job.
-- @find_limit bigint
-- sets 1
SELECT TOP (@find_limit) j.id, j.queue
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.run_at IS NOT NULL AND j.run_at <= @now
ORDER BY j.run_at, j.id
OPTION (KEEPFIXED PLAN);
