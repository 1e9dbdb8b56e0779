-- Done or dead jobs after a position, the longest finished first.
-- @peek_queue varchar(128)
-- @peek_at datetime2(6)
-- @peek_id bigint
-- @peek_limit bigint
-- @peek_state varchar(9)
-- sets 1
SELECT TOP (@peek_limit) j.id, DATALENGTH(j.payload) + COALESCE(DATALENGTH(j.result), 0) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.finished_at IS NOT NULL AND j.queue = @peek_queue AND j.state = @peek_state
  AND j.finished_at >= @peek_at AND (j.finished_at > @peek_at OR j.id > @peek_id)
ORDER BY j.finished_at, j.id
OPTION (KEEPFIXED PLAN);
