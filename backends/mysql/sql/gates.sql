-- Statements of claims from queues with limits. backends/internal/core/gates.go describes them.

-- fragment: now_ns
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {now}) * 1000

-- fragment: limits
q.max_claimed, q.rate, q.rate_ms, q.burst, q.group_limit, q.group_skips, q.group_ready

-- name: lock_gate
-- It always writes: clusters with several writing servers compare only writes.
INSERT INTO qsidecar_gates (queue) VALUES (:queue) ON DUPLICATE KEY UPDATE passes = passes + 1

-- name: read_gate
SELECT {limits}, q.limits_at > {now} - INTERVAL :settles_ms * 1000 MICROSECOND, {now_ns}, g.next_at
FROM qsidecar_gates g LEFT JOIN qsidecar_queues q ON q.queue = g.queue
WHERE g.queue = :queue

-- name: read_capped
-- The jobs that a claim entered, and whether they are still claimed.
SELECT job, (SELECT j.state = 'claimed' FROM qsidecar_jobs j WHERE j.id = c.job) FROM qsidecar_capped c WHERE c.queue = :queue

-- name: claimed_in
SELECT id FROM {jobs} WHERE segment > 'c' AND segment < 'd' AND queue = :queue

-- name: leave_capped
DELETE FROM qsidecar_capped WHERE queue = :queue AND job IN (:jobs)

-- name: enter_capped
INSERT IGNORE INTO qsidecar_capped (queue, job) VALUES (:queue, :job)

-- name: move_gate
-- The caller passes Gate.Next and Gate.Advance (backends/limits.go).
UPDATE qsidecar_gates SET next_at = GREATEST(:next, {now_ns}) + :advance WHERE queue = :queue

-- name: lock_limits
INSERT INTO qsidecar_queues (queue) VALUES (:queue) ON DUPLICATE KEY UPDATE paused = paused

-- name: read_limits
SELECT {limits} FROM qsidecar_queues AS q WHERE q.queue = :queue FOR UPDATE

-- name: set_limits
UPDATE qsidecar_queues SET max_claimed = :max_claimed, rate = :rate, rate_ms = :rate_ms, burst = :burst,
  group_limit = :group_limit, group_skips = :group_skips, group_ready = :group_ready, limits_at = {now} WHERE queue = :queue

-- name: all_limits
SELECT {limits}, q.queue FROM qsidecar_queues AS q
WHERE q.max_claimed IS NOT NULL OR q.rate IS NOT NULL OR q.group_limit IS NOT NULL OR q.group_skips IS NOT NULL OR q.group_ready IS NOT NULL ORDER BY q.queue
