-- The sequence that ids and positions share, the numbers of commits, and whether a sidecar is alive.

-- name: sequence
SELECT seq, (SELECT max(id) FROM qsidecar_jobs) FROM sqlite_sequence WHERE name = 'qsidecar_jobs'

-- name: set_sequence
UPDATE sqlite_sequence SET seq = :seq WHERE name = 'qsidecar_jobs'

-- name: last_number
-- The last number that anything names. It reads whole tables, and is needed only after something emptied
-- sqlite_sequence or set it back.
SELECT max(n) FROM (SELECT 0 AS n UNION ALL SELECT max(max(id, coalesce(position, 0))) FROM qsidecar_jobs
  UNION ALL SELECT max(job) FROM qsidecar_keys UNION ALL SELECT max(job) FROM qsidecar_failures)

-- name: restore_sequence
INSERT INTO sqlite_sequence (name, seq)
SELECT 'qsidecar_jobs', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'qsidecar_jobs')

-- name: mark
INSERT INTO qsidecar_commits (handle, number, at)
VALUES (:handle, :number, :at)
ON CONFLICT (handle) DO UPDATE
SET number = excluded.number, at = excluded.at

-- name: marked
SELECT number FROM qsidecar_commits WHERE handle = :handle

-- name: sidecar_alive
SELECT 1 FROM qsidecar_sidecars WHERE sidecar = :sidecar AND NOT dead AND NOT has_left
