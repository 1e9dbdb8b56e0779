SELECT @beat_made AS made;
SELECT h.host, h.beats, CASE WHEN h.expires_at <= @now THEN 1 ELSE 0 END AS expired, h.dead, h.name
FROM {s}.qsidecar_hosts AS h
WHERE h.host <> @beat_host
ORDER BY h.host;
