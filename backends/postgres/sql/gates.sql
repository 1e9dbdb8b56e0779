-- Statements of claims from queues with limits. backends/internal/core/gates.go describes them.

-- name: lock_gate
-- It always writes: clusters with several writing servers compare only writes.
INSERT INTO {s}.qsidecar_gates AS g (queue) VALUES (:queue) ON CONFLICT (queue) DO UPDATE SET passes = g.passes + 1

-- name: enter_claimed
-- Enters all claimed jobs of the queue, if its limits changed lately.
INSERT INTO {s}.qsidecar_capped (queue, job)
SELECT j.queue, j.id FROM {s}.qsidecar_jobs j
WHERE (SELECT q.max_claimed IS NOT NULL AND q.limits_at > {s}.qsidecar_now() - :settles_ms::bigint * interval '1 ms'
    FROM {s}.qsidecar_queues q WHERE q.queue = :queue)
  AND j.state = 'claimed' AND j.queue = :queue
ON CONFLICT (queue, job) DO NOTHING

-- name: leave_capped
-- Deletes the rows of jobs that are no longer claimed.
DELETE FROM {s}.qsidecar_capped c
WHERE c.queue = :queue AND (SELECT j.state FROM {s}.qsidecar_jobs j WHERE j.id = c.job) IS DISTINCT FROM 'claimed'

-- name: read_gate
SELECT coalesce(q.max_claimed, 0), coalesce(q.rate, 0), coalesce(q.rate_ms, 0), coalesce(q.burst, 0),
  CASE WHEN q.max_claimed IS NULL THEN 0 ELSE (SELECT count(*) FROM {s}.qsidecar_capped c WHERE c.queue = g.queue) END,
  {now_ns}, g.next_at
FROM {s}.qsidecar_gates g LEFT JOIN {s}.qsidecar_queues q ON q.queue = g.queue
WHERE g.queue = :queue

-- fragment: now_ns
(extract(epoch FROM {s}.qsidecar_now()) * 1000000)::bigint * 1000

-- name: move_gate
UPDATE {s}.qsidecar_gates SET next_at = greatest(:next::bigint, {now_ns}) + :advance::bigint WHERE queue = :queue

-- name: enter_capped
INSERT INTO {s}.qsidecar_capped (queue, job) SELECT :queue, unnest(:ids::bigint[]) ON CONFLICT (queue, job) DO NOTHING

-- fragment: limits
coalesce(max_claimed, 0), coalesce(rate, 0), coalesce(rate_ms, 0), coalesce(burst, 0), coalesce(group_limit, 0), coalesce(group_skips, false), coalesce(group_ready, 0)

-- name: lock_limits
INSERT INTO {s}.qsidecar_queues AS q (queue) VALUES (:queue) ON CONFLICT (queue) DO UPDATE SET paused = q.paused
RETURNING {limits}

-- name: set_limits
UPDATE {s}.qsidecar_queues SET max_claimed = nullif(:max_claimed::bigint, 0), rate = nullif(:rate::bigint, 0), rate_ms = nullif(:rate_ms::bigint, 0),
  burst = nullif(:burst::bigint, 0), limits_at = {s}.qsidecar_now(),
  group_limit = nullif(:group_limit::bigint, 0), group_skips = nullif(:group_skips::boolean, false),
  group_ready = nullif(:group_ready::bigint, 0)
WHERE queue = :queue

-- name: all_limits
SELECT queue, {limits}
FROM {s}.qsidecar_queues WHERE max_claimed IS NOT NULL OR rate IS NOT NULL OR group_limit IS NOT NULL OR group_skips OR group_ready IS NOT NULL ORDER BY queue
