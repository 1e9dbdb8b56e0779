SELECT @beat_made AS made;
SELECT h.sidecar, h.heartbeats, DATEDIFF_BIG(millisecond, @now, h.expires_at) AS time_left, h.dead, h.has_left,
  COALESCE(h.timeout_ms, -1) AS timeout_ms, h.stats_leader, h.name, COALESCE(h.version, N'') AS version, COALESCE(h.leases, -1) AS leases
FROM {s}.qsidecar_sidecars AS h
WHERE h.sidecar <> @beat_host
ORDER BY h.sidecar;
