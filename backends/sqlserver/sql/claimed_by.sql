-- Rows that a sidecar has claimed, in the order of their ids.
-- @held_host bigint
-- @held_after bigint
-- @held_limit bigint
-- sets 1
SELECT TOP (@held_limit) j.id, j.token_sidecar, j.token_number, j.queue, CASE WHEN j.lease_ms IS NULL THEN 0 ELSE 1 END AS timed
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK)
WHERE j.state = 'claimed' AND j.owner = @held_host AND j.id > @held_after
ORDER BY j.id
OPTION (KEEPFIXED PLAN);
