-- Statistics and lists of jobs.

-- name: queues_ready
-- Statements that count all queues return the queue, the state, the number of rows, and the time when the oldest row
-- entered the state. Within a priority, positions increase in that order.
SELECT name, 'ready', count(*), (SELECT ready_at
  FROM qsidecar_jobs INDEXED BY qsidecar_ready
  WHERE state = 'ready' AND group_name IS NULL AND queue = name AND priority = above
  ORDER BY position LIMIT 1)
FROM (SELECT queue AS name, priority AS above
  FROM qsidecar_jobs INDEXED BY qsidecar_ready
  WHERE state = 'ready' AND group_name IS NULL AND queue > :after
  ORDER BY queue, priority DESC LIMIT :limit)
GROUP BY name, above ORDER BY name, above DESC

-- name: queues_blocked
SELECT queue, 'blocked', count(*), NULL
FROM (SELECT queue FROM qsidecar_jobs INDEXED BY qsidecar_blocked WHERE state = 'ready' AND group_name IS NOT NULL AND queue > :after ORDER BY queue LIMIT :limit)
GROUP BY queue ORDER BY queue

-- name: queues_scheduled
SELECT queue, 'scheduled', count(*), NULL
FROM (SELECT queue FROM qsidecar_jobs INDEXED BY qsidecar_delayed WHERE state = 'scheduled' AND queue > :after ORDER BY queue LIMIT :limit)
GROUP BY queue ORDER BY queue

-- name: queues_claimed
SELECT queue, 'claimed', count(*), min(at)
FROM (SELECT queue, claimed_at AS at FROM qsidecar_jobs INDEXED BY qsidecar_claimed WHERE state = 'claimed' AND queue > :after ORDER BY queue LIMIT :limit)
GROUP BY queue ORDER BY queue

-- name: queues_finished
SELECT queue, state, count(*), NULL
FROM (SELECT queue, state
  FROM qsidecar_jobs INDEXED BY qsidecar_finished
  WHERE finished_at IS NOT NULL AND (queue, state) > (:after_queue, :after_state)
  ORDER BY queue, state LIMIT :limit)
GROUP BY queue, state ORDER BY queue, state

-- name: queues_paused
SELECT queue FROM qsidecar_queues WHERE paused

-- name: count_ready
SELECT count(*) FROM (SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_ready WHERE state = 'ready' AND group_name IS NULL AND queue = :queue LIMIT :limit)

-- name: count_blocked
SELECT count(*)
FROM (SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_blocked WHERE state = 'ready' AND group_name IS NOT NULL AND queue = :queue LIMIT :limit)

-- name: count_scheduled
SELECT count(*) FROM (SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_delayed WHERE state = 'scheduled' AND queue = :queue LIMIT :limit)

-- name: count_claimed
SELECT count(*) FROM (SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_claimed WHERE state = 'claimed' AND queue = :queue LIMIT :limit)

-- name: count_done
SELECT count(*)
FROM (SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_finished WHERE finished_at IS NOT NULL AND state = 'done' AND queue = :queue LIMIT :limit)

-- name: count_dead
SELECT count(*)
FROM (SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_finished WHERE finished_at IS NOT NULL AND state = 'dead' AND queue = :queue LIMIT :limit)

-- name: oldest_ready
SELECT ready_at
FROM qsidecar_jobs INDEXED BY qsidecar_ready
WHERE state = 'ready' AND group_name IS NULL AND queue = :queue AND priority = :priority
ORDER BY position LIMIT 1

-- name: oldest_claimed
SELECT claimed_at
FROM qsidecar_jobs INDEXED BY qsidecar_claimed
WHERE state = 'claimed' AND queue = :queue
ORDER BY claimed_at LIMIT 1

-- name: place
SELECT priority, position, run_at, claimed_at, finished_at, coalesce(group_name, admitted_group), enqueued_at
FROM qsidecar_jobs
WHERE id = :id AND queue = :queue

-- name: peek_same_priority
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_ready
WHERE state = 'ready' AND group_name IS NULL AND queue = :queue AND priority = :priority AND position > :after
ORDER BY position LIMIT :limit

-- name: peek_ready
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_ready
WHERE state = 'ready' AND group_name IS NULL AND queue = :queue AND priority < :below
ORDER BY priority DESC, position LIMIT :limit

-- name: peek_blocked_same
-- Blocked jobs of the same group and priority, then of the same group, then of other groups.
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_blocked
WHERE state = 'ready' AND group_name IS NOT NULL AND queue = :queue AND group_name = :group AND priority = :priority AND position > :after
ORDER BY position LIMIT :limit

-- name: peek_blocked_group
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_blocked
WHERE state = 'ready' AND group_name IS NOT NULL AND queue = :queue AND group_name = :group AND priority < :below
ORDER BY priority DESC, position LIMIT :limit

-- name: peek_blocked
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_blocked
WHERE state = 'ready' AND group_name IS NOT NULL AND queue = :queue AND group_name > :group
ORDER BY group_name, priority DESC, position LIMIT :limit

-- name: peek_scheduled
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_delayed
WHERE state = 'scheduled' AND queue = :queue AND (run_at, id) > (:after_at, :after_id)
ORDER BY run_at, id LIMIT :limit

-- name: peek_claimed
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_claimed
WHERE state = 'claimed' AND queue = :queue AND (claimed_at, id) > (:after_at, :after_id)
ORDER BY claimed_at, id LIMIT :limit

-- name: peek_done
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_finished
WHERE finished_at IS NOT NULL AND state = 'done' AND queue = :queue AND (finished_at, id) > (:after_at, :after_id)
ORDER BY finished_at, id LIMIT :limit

-- name: newest_done
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_finished
WHERE finished_at IS NOT NULL AND state = 'done' AND queue = :queue AND (finished_at, id) < (:before_at, :before_id)
ORDER BY finished_at DESC, id DESC LIMIT :limit

-- name: peek_dead
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_finished
WHERE finished_at IS NOT NULL AND state = 'dead' AND queue = :queue AND (finished_at, id) > (:after_at, :after_id)
ORDER BY finished_at, id LIMIT :limit

-- name: newest_dead
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_finished
WHERE finished_at IS NOT NULL AND state = 'dead' AND queue = :queue AND (finished_at, id) < (:before_at, :before_id)
ORDER BY finished_at DESC, id DESC LIMIT :limit

-- name: size
SELECT {bytes} + coalesce(octet_length(result), 0) FROM qsidecar_jobs WHERE id = :id AND queue = :queue

-- name: view
SELECT queue, {shown_state}, CAST(payload AS BLOB), priority, attempts, coalesce(claim_max, max_attempts), enqueued_at, run_at,
  claimed_at, finished_at, worker, key, headers, result, last_error, coalesce(group_name, admitted_group), progress, start_before
FROM qsidecar_jobs
WHERE id = :id

-- name: failures
SELECT attempt, cause, message, at FROM qsidecar_failures WHERE job = :job ORDER BY fence

-- name: held
SELECT id, token_sidecar, token_number, queue, lease_ms
FROM qsidecar_jobs INDEXED BY qsidecar_owned
WHERE state = 'claimed' AND owner = :owner AND id > :after
ORDER BY id LIMIT :limit
