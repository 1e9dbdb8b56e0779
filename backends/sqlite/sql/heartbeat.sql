-- Heartbeats, and the other sidecars.

-- fragment: heartbeat_sets
name = :name, heartbeats = heartbeats + 1, expires_at = :expires_at, timeout_ms = :timeout_ms,
  stats_leader = :stats_leader, version = :version, leases = :leases

-- name: join
INSERT INTO qsidecar_sidecars (name, heartbeats, expires_at, timeout_ms, stats_leader, version, leases, sidecar)
VALUES (:name, 1, :expires_at, :timeout_ms, :stats_leader, :version, :leases, :sidecar)
ON CONFLICT (sidecar) DO UPDATE
SET name = excluded.name, heartbeats = heartbeats + 1, expires_at = excluded.expires_at, timeout_ms = excluded.timeout_ms,
  stats_leader = excluded.stats_leader, version = excluded.version, leases = excluded.leases
WHERE NOT dead AND NOT has_left

-- name: heartbeat
UPDATE qsidecar_sidecars SET {heartbeat_sets}
WHERE sidecar = :sidecar AND NOT dead AND NOT has_left

-- name: farewell
UPDATE qsidecar_sidecars SET {heartbeat_sets}, has_left = 1
WHERE sidecar = :sidecar AND NOT dead

-- name: peers
SELECT sidecar, heartbeats, expires_at - :now, dead, has_left, coalesce(timeout_ms, -1), stats_leader,
  name, coalesce(version, ''), coalesce(leases, -1)
FROM qsidecar_sidecars WHERE sidecar <> :sidecar ORDER BY sidecar
