-- Statements of an operator's commands.

-- name: in_state
SELECT queue, {shown_state}, key, coalesce(group_name, admitted_group), admitted_group IS NOT NULL, key_state = 'start' FROM qsidecar_jobs WHERE id = :id

-- name: retry
UPDATE qsidecar_jobs
SET state = 'ready', position = :position, ready_at = :ready_at, attempts = 0, losses = 0, prefetch_losses = 0,
  finished_at = NULL, prune_at = NULL, group_noticed = NULL, start_before = NULL
WHERE id = :id

-- name: schedule
UPDATE qsidecar_jobs SET state = 'scheduled', priority = :priority, run_at = :run_at, group_noticed = NULL WHERE id = :id

-- name: move_back
UPDATE qsidecar_jobs
SET state = 'ready', priority = :priority, run_at = NULL, position = :position, ready_at = :ready_at, group_noticed = NULL
WHERE id = :id

-- name: pause
INSERT INTO qsidecar_queues (queue, paused) VALUES (:queue, 1) ON CONFLICT (queue) DO UPDATE SET paused = 1

-- name: resume
UPDATE qsidecar_queues SET paused = 0 WHERE queue = :queue AND paused

-- name: waiting
SELECT attempts, fence, retention_dead_ms FROM qsidecar_jobs WHERE id = :id

-- name: cancel
UPDATE qsidecar_jobs
SET state = 'dead', fence = :fence, run_at = NULL, retention_dead_ms = :retention_dead_ms, finished_at = :finished_at, prune_at = :prune_at,
  last_error = :last_error
WHERE id = :id

-- name: was_cancelled
SELECT 1 FROM qsidecar_failures f INNER JOIN qsidecar_jobs j ON j.id = f.job AND j.fence = f.fence WHERE f.job = :id AND f.cause = 'cancelled'

-- name: note_cancelled
INSERT OR IGNORE INTO qsidecar_cancelled (owner, token_sidecar, token_number) VALUES (:owner, :token_sidecar, :token_number)
