-- Heartbeats, and the other sidecars.

-- name: join
INSERT INTO qsidecar_sidecars (sidecar, name, heartbeats, expires_at, timeout_ms, stats_leader, version, leases)
VALUES (:sidecar, :name, 1, {now} + INTERVAL :timeout_us MICROSECOND, :timeout_ms, :stats_leader, :version, :leases)
ON DUPLICATE KEY UPDATE name = IF(dead OR has_left, name, VALUES(name)), heartbeats = IF(dead OR has_left, heartbeats, heartbeats + 1),
  expires_at = IF(dead OR has_left, expires_at, VALUES(expires_at)), timeout_ms = IF(dead OR has_left, timeout_ms, VALUES(timeout_ms)),
  stats_leader = IF(dead OR has_left, stats_leader, VALUES(stats_leader)), version = IF(dead OR has_left, version, VALUES(version)),
  leases = IF(dead OR has_left, leases, VALUES(leases))

-- fragment: heartbeat
name = :name, heartbeats = heartbeats + 1, expires_at = {now} + INTERVAL :timeout_us MICROSECOND,
  timeout_ms = :timeout_ms, stats_leader = :stats_leader, version = :version, leases = :leases

-- name: renew
UPDATE qsidecar_sidecars SET {heartbeat}
WHERE sidecar = :sidecar AND NOT dead AND NOT has_left

-- name: leave
UPDATE qsidecar_sidecars SET {heartbeat}, has_left = 1
WHERE sidecar = :sidecar AND NOT dead

-- name: last_watcher
-- The last watcher, if enough sidecars watch another one. The next statement reads the rows up to it.
SET @qsidecar_last = (SELECT sidecar FROM qsidecar_sidecars WHERE sidecar < :sidecar AND NOT dead AND NOT has_left
AND TIMESTAMPDIFF(MICROSECOND, {now}, expires_at) BETWEEN {in_time} * 1000 * timeout_ms AND 1000 * (timeout_ms + 1)
ORDER BY sidecar LIMIT 1 OFFSET {other_watchers})

-- name: peers
SELECT sidecar, heartbeats, TIMESTAMPDIFF(MICROSECOND, {now}, expires_at), dead, has_left, @qsidecar_last IS NOT NULL,
  COALESCE(timeout_ms, -1), stats_leader, name, COALESCE(version, ''), COALESCE(leases, -1)
FROM qsidecar_sidecars
WHERE sidecar <= IF(:all_peers, 9223372036854775807, COALESCE(@qsidecar_last, 9223372036854775807)) OR sidecar = :sidecar ORDER BY sidecar
