-- Heartbeats. All three have the same parameters.

-- name: join
-- Begins a sidecar's row, with the latest version of the tables that the program supports. All three heartbeats have the
-- same parameters. :all_peers: return all peers.
WITH b AS (
  INSERT INTO {s}.qsidecar_sidecars AS h (sidecar, name, heartbeats, expires_at, timeout_ms, max_version, joined_at, stats_leader, version, leases)
  VALUES (:sidecar, :name, 1, {s}.qsidecar_now() + :timeout_ms::bigint * interval '1 ms', :timeout_ms, {max_version}, {s}.qsidecar_now(), :stats_leader, :version, :leases)
  ON CONFLICT (sidecar) DO UPDATE SET name = excluded.name, heartbeats = h.heartbeats + 1, expires_at = excluded.expires_at, timeout_ms = excluded.timeout_ms,
    stats_leader = excluded.stats_leader, version = excluded.version, leases = excluded.leases
    WHERE NOT h.dead AND NOT h.has_left
  RETURNING 1
)
{peers}

-- name: renew
WITH b AS (
  UPDATE {s}.qsidecar_sidecars SET name = :name, heartbeats = heartbeats + 1, expires_at = {s}.qsidecar_now() + :timeout_ms::bigint * interval '1 ms', timeout_ms = :timeout_ms,
    stats_leader = :stats_leader, version = :version, leases = :leases
  WHERE sidecar = :sidecar AND NOT dead AND NOT has_left
  RETURNING pg_catalog.set_config('synchronous_commit', 'off', true)
)
{peers}

-- name: leave
WITH b AS (
  UPDATE {s}.qsidecar_sidecars SET name = :name, heartbeats = heartbeats + 1, expires_at = {s}.qsidecar_now() + :timeout_ms::bigint * interval '1 ms', timeout_ms = :timeout_ms,
    stats_leader = :stats_leader, version = :version, leases = :leases, has_left = true
  WHERE sidecar = :sidecar AND NOT dead
  RETURNING 1
)
{peers}

-- fragment: peers
-- The other sidecars. If enough of them watch, then without :all_peers only those up to the last watcher.
SELECT b.n, w.last IS NOT NULL, coalesce(h.sidecar, 0), coalesce(h.heartbeats, 0), coalesce({expired}, false), coalesce(h.dead, false),
  coalesce((extract(epoch FROM h.expires_at - {s}.qsidecar_now()) * 1000)::bigint, 0), coalesce(h.has_left, false), coalesce(h.timeout_ms, -1),
  coalesce(h.stats_leader, false), coalesce(h.name, ''), coalesce(h.version, ''), coalesce(h.leases, -1)
FROM (SELECT count(*) AS n FROM b) AS b
CROSS JOIN (SELECT (SELECT sidecar FROM {s}.qsidecar_sidecars
  WHERE sidecar < :sidecar AND NOT dead AND NOT has_left AND expires_at <= {s}.qsidecar_now() + timeout_ms * interval '1 ms'
    AND expires_at >= {s}.qsidecar_now() + {in_time} * timeout_ms * interval '1 ms'
  ORDER BY sidecar LIMIT 1 OFFSET {watchers} - 1) AS last OFFSET 0) AS w
LEFT JOIN {s}.qsidecar_sidecars h ON h.sidecar <> :sidecar AND h.sidecar <= CASE WHEN :all_peers::boolean OR w.last IS NULL THEN 9223372036854775807 ELSE w.last END
ORDER BY h.sidecar

-- fragment: expired
-- A heartbeat's time is over, or it would last for longer than any heartbeat does: the server's
-- clock was set back since, and its end is of no use. A living sidecar renews it by the new clock
-- soon. The rows of sidecars that left, with times of their own, wait for the clock.
h.expires_at <= {s}.qsidecar_now()
  OR NOT h.has_left AND h.expires_at > {s}.qsidecar_now() + h.timeout_ms * interval '1 ms'
