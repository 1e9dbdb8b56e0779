SELECT @beat_made AS made;
SELECT h.sidecar, h.heartbeats, DATEDIFF_BIG(millisecond, @now, h.expires_at) AS time_left, h.dead, h.name, h.has_left
FROM {s}.qsidecar_sidecars AS h
WHERE h.sidecar <> @beat_host
ORDER BY h.sidecar;
