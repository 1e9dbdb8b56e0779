-- Statements of an operator's commands.

-- name: pause
INSERT INTO qsidecar_queues (queue, paused) VALUES (:queue, 1) ON DUPLICATE KEY UPDATE paused = 1

-- name: resume
UPDATE qsidecar_queues SET paused = 0 WHERE queue = :queue

-- name: any_in_segment
SELECT EXISTS (SELECT 1 FROM {jobs} WHERE segment = :segment)

-- name: following
-- The jobs of a `segment` after a position (listPlace.following), in their order.
SELECT {no_pushdown} id, urgency, sort_key FROM {jobs} WHERE segment = :segment AND {uncovered} AND :following
ORDER BY urgency, sort_key, id LIMIT :limit

-- name: retry
-- with set: attempts = 0, losses = 0, prefetch_losses = 0, finished_at = NULL, prune_at = NULL, group_noticed = NULL, start_before = NULL
{make_ready}

-- name: change_ready
-- with set: run_at = NULL, priority = COALESCE(:priority, priority), group_noticed = NULL
{make_ready}

-- name: change_scheduled
UPDATE {by_id} SET state = 'scheduled', priority = COALESCE(:priority, priority) WHERE id IN (:ids)

-- name: change_scheduled_at
UPDATE {by_id} SET state = 'scheduled', run_at = :run_at, priority = COALESCE(:priority, priority) WHERE id IN (:ids)

-- name: cancelled_jobs
-- The deliveries of jobs that a cancel ended.
SELECT job, fence FROM qsidecar_failures WHERE job IN (:jobs) AND cause = 'cancelled'

-- name: cancel_waiting
-- Prepares waiting jobs for the change that makes them dead: the failure record needs a fence of its own.
UPDATE {by_id} SET fence = :fences, retention_dead_ms = COALESCE(retention_dead_ms, :retention_dead) WHERE id IN (:ids)

-- name: note_cancelled
INSERT IGNORE INTO qsidecar_cancelled (owner, token_sidecar, token_number) VALUES (:owner, :token_sidecar, :token_number)
