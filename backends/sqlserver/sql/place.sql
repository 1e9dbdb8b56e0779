-- Where a job is in the order of any state.
-- @place_queue varchar(128)
-- @place_id bigint
-- sets 1
SELECT j.priority, j.position, j.run_at, j.claimed_at, j.finished_at
FROM {s}.qsidecar_jobs AS j
WHERE j.id = @place_id AND j.queue = @place_queue
OPTION (KEEPFIXED PLAN);
