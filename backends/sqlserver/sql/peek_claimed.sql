-- Claimed jobs after a position, the longest claimed first. They are as many as workers and
-- prefetched jobs.
-- @peek_queue varchar(128)
-- @peek_at datetime2(6)
-- @peek_id bigint
-- @peek_limit bigint
-- sets 1
SELECT TOP (@peek_limit) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'claimed' AND j.queue = @peek_queue
  AND j.claimed_at >= @peek_at AND (j.claimed_at > @peek_at OR j.id > @peek_id)
ORDER BY j.claimed_at, j.id
OPTION (KEEPFIXED PLAN);
