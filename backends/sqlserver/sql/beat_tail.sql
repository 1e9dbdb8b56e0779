SELECT @beat_made AS made;
SELECT h.host, h.beats, DATEDIFF_BIG(millisecond, @now, h.expires_at) AS time_left, h.dead, h.name, h.has_left
FROM {s}.qsidecar_hosts AS h
WHERE h.host <> @beat_host
ORDER BY h.host;
