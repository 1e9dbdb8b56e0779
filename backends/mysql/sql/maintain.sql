-- Statements of maintenance. FindDue builds one more, which finds all due rows, for the queues and sidecars.

-- name: mark_dead
-- The condition is that of backends.HeartbeatExpired.
UPDATE qsidecar_sidecars SET dead = 1
WHERE sidecar = :sidecar AND heartbeats = :heartbeats AND NOT dead
  AND (expires_at <= {now} OR NOT has_left AND expires_at > {now} + INTERVAL :timeout_us MICROSECOND)

-- name: find_due
SELECT {no_pushdown} id FROM {jobs}
WHERE segment = :segment AND {uncovered} AND urgency = 0 AND sort_key >= :from AND sort_key <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {now})
ORDER BY urgency, sort_key, id LIMIT :limit

-- name: find_arrived
SELECT id FROM {jobs} WHERE segment = 'n' ORDER BY urgency, sort_key, id LIMIT :limit

-- name: expiring
SELECT expires_at, job FROM qsidecar_expiring WHERE expires_at >= :from AND expires_at <= {now} ORDER BY expires_at, job LIMIT :limit

-- name: expiring_keys
SELECT queue, `key`, prune_at FROM qsidecar_keys FORCE INDEX (qsidecar_keys_expiring)
WHERE prune_at >= :from AND prune_at <= {now} ORDER BY prune_at LIMIT :limit

-- name: lives
SELECT 1 FROM qsidecar_sidecars WHERE sidecar = :sidecar AND NOT dead

-- name: owned
SELECT id FROM {jobs} WHERE segment = :segment ORDER BY urgency, sort_key, id LIMIT :limit

-- name: forget
DELETE FROM qsidecar_sidecars WHERE sidecar = :sidecar AND dead
