-- Statements of maintenance.

-- name: scheduled
SELECT id, queue, run_at, group_name IS NOT NULL
FROM qsidecar_jobs INDEXED BY qsidecar_scheduled
WHERE state = 'scheduled'
ORDER BY run_at, id LIMIT :limit

-- name: never
SELECT id
FROM qsidecar_jobs INDEXED BY qsidecar_scheduled
WHERE state = 'scheduled' AND run_at > 253402300799999
ORDER BY run_at, id LIMIT 1

-- name: promote
UPDATE qsidecar_jobs SET state = 'ready', position = :position, ready_at = :ready_at, group_noticed = NULL WHERE id = :id

-- name: unstarted
-- Waiting jobs that expire, the first one first.
SELECT id, queue, start_before, on_expiry = 'delete'
FROM qsidecar_jobs INDEXED BY qsidecar_expiring
WHERE start_before IS NOT NULL AND state IN ('ready', 'scheduled')
ORDER BY start_before LIMIT :limit

-- name: due
SELECT id, due_at, deadline FROM qsidecar_jobs INDEXED BY qsidecar_due WHERE due_at IS NOT NULL ORDER BY due_at LIMIT :limit

-- name: has_groups
-- Whether there are jobs that have groups and are not finished.
SELECT EXISTS (SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_blocked WHERE state = 'ready' AND group_name IS NOT NULL AND queue > '')
  OR EXISTS (SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_admitted WHERE admitted_group IS NOT NULL AND queue > '')

-- name: next_owner
SELECT owner FROM qsidecar_jobs INDEXED BY qsidecar_owned WHERE state = 'claimed' AND owner >= :from ORDER BY owner LIMIT 1

-- name: owned
SELECT id FROM qsidecar_jobs INDEXED BY qsidecar_owned WHERE state = 'claimed' AND owner = :owner ORDER BY id LIMIT :limit

-- name: lives
SELECT 1 FROM qsidecar_sidecars WHERE sidecar = :sidecar AND NOT dead

-- name: mark_silent
UPDATE qsidecar_sidecars SET dead = 1
WHERE sidecar = :sidecar AND heartbeats = :heartbeats AND (expires_at <= :now OR NOT has_left AND expires_at > :max_expiry) AND NOT dead

-- name: dead_sidecars
SELECT sidecar FROM qsidecar_sidecars WHERE dead

-- name: any_dead
SELECT EXISTS (SELECT 1 FROM qsidecar_sidecars WHERE dead)

-- name: fires_at
SELECT next_at FROM qsidecar_schedules INDEXED BY qsidecar_schedules_next WHERE next_at IS NOT NULL AND adopted <= :schedules ORDER BY next_at LIMIT :limit

-- name: batches_due
-- Whether there are batches that can possibly end, or be deleted.
SELECT EXISTS (SELECT 1 FROM qsidecar_batch_notes WHERE batch > 0)
  OR EXISTS (SELECT 1 FROM qsidecar_batches INDEXED BY qsidecar_batches_state WHERE state IN ('closed', 'cancelling'))
  OR EXISTS (SELECT 1 FROM qsidecar_batches INDEXED BY qsidecar_batches_expire WHERE expires_at <= :now)

-- name: forget
DELETE FROM qsidecar_sidecars WHERE sidecar = :sidecar AND dead

-- name: cancelled
SELECT token_sidecar, token_number FROM qsidecar_cancelled WHERE owner = :owner

-- name: forget_cancelled
DELETE FROM qsidecar_cancelled WHERE owner = :owner AND token_sidecar = :token_sidecar AND token_number = :token_number

-- name: forget_owners
-- What a cancel has stored for owners that aren't alive.
DELETE FROM qsidecar_cancelled WHERE owner NOT IN (SELECT sidecar FROM qsidecar_sidecars WHERE NOT dead)

-- name: expired
-- The statement `remove` of write.sql deletes them.
SELECT id, queue, prune_at FROM qsidecar_jobs INDEXED BY qsidecar_prunable WHERE prune_at <= :now ORDER BY prune_at LIMIT :limit

-- name: expired_keys
SELECT queue, key, expires_at
FROM qsidecar_keys INDEXED BY qsidecar_keys_prunable
WHERE state IS NOT NULL AND expires_at <= :now
ORDER BY expires_at LIMIT :limit

-- name: drop_key
DELETE FROM qsidecar_keys WHERE queue = :queue AND key = :key

-- name: any_ready
SELECT 1 FROM qsidecar_jobs INDEXED BY qsidecar_ready WHERE state = 'ready' AND group_name IS NULL AND queue = :queue LIMIT 1

-- name: old_marked
SELECT 1 FROM qsidecar_commits WHERE at < :before LIMIT 1

-- name: old_marks
DELETE FROM qsidecar_commits WHERE at < :before
