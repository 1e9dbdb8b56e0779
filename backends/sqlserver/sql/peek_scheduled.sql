-- Scheduled jobs after a position, in the order in which they are due.
-- @peek_queue varchar(128)
-- @peek_at datetime2(6)
-- @peek_id bigint
-- @peek_limit bigint
-- sets 1
SELECT TOP (@peek_limit) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_delayed), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.run_at IS NOT NULL AND j.queue = @peek_queue
  AND j.run_at >= @peek_at AND (j.run_at > @peek_at OR j.id > @peek_id)
ORDER BY j.run_at, j.id
OPTION (KEEPFIXED PLAN);
