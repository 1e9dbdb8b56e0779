-- Finds expired finished jobs. It runs only if the database has refused to delete a job.
-- @find_limit bigint
-- sets 1
SELECT TOP (@find_limit) j.id, j.queue
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_expiring), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.expires_at IS NOT NULL AND j.expires_at <= @now
ORDER BY j.expires_at
OPTION (KEEPFIXED PLAN);
