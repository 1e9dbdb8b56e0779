-- Statements of claims from queues with limits. backends/internal/core/gates.go describes them. One transaction at a time
-- writes, so no row is locked.

-- name: enter_claimed
-- Enters all claimed jobs of the queue, if its limits changed lately.
INSERT INTO qsidecar_capped (queue, job)
SELECT queue, id FROM qsidecar_jobs
WHERE EXISTS (SELECT 1 FROM qsidecar_queues WHERE queue = :queue AND max_claimed IS NOT NULL AND limits_at > :settled)
  AND state = 'claimed' AND queue = :queue
ON CONFLICT (queue, job) DO NOTHING

-- name: leave_capped
-- Deletes the rows of jobs that are no longer claimed.
DELETE FROM qsidecar_capped
WHERE queue = :queue AND (SELECT state FROM qsidecar_jobs WHERE id = job) IS NOT 'claimed'

-- name: read_gate
SELECT max_claimed, rate, rate_ms, burst, group_limit, group_skips, group_ready, (SELECT count(*) FROM qsidecar_capped WHERE queue = :queue),
  (SELECT next_at FROM qsidecar_gates WHERE queue = :queue)
FROM qsidecar_queues WHERE queue = :queue

-- name: move_gate
INSERT INTO qsidecar_gates (queue, next_at) VALUES (:queue, :next_at) ON CONFLICT (queue) DO UPDATE SET next_at = :next_at

-- name: enter_capped
INSERT INTO qsidecar_capped (queue, job) VALUES (:queue, :job) ON CONFLICT (queue, job) DO NOTHING

-- name: set_limits
INSERT INTO qsidecar_queues (queue, max_claimed, rate, rate_ms, burst, group_limit, group_skips, group_ready, limits_at) VALUES (:queue, :max_claimed, :rate, :rate_ms, :burst, :group_limit, :group_skips, :group_ready, :limits_at)
ON CONFLICT (queue) DO UPDATE SET max_claimed = :max_claimed, rate = :rate, rate_ms = :rate_ms, burst = :burst, group_limit = :group_limit, group_ready = :group_ready,
  group_skips = :group_skips, limits_at = :limits_at

-- name: all_limits
SELECT max_claimed, rate, rate_ms, burst, group_limit, group_skips, group_ready, queue FROM qsidecar_queues
WHERE max_claimed IS NOT NULL OR rate IS NOT NULL OR group_limit IS NOT NULL OR group_skips IS NOT NULL OR group_ready IS NOT NULL ORDER BY queue
