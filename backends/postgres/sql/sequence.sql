-- The sequence of ids and positions: whether it is behind the ids that something names, and its repair.

-- fragment: last_number
coalesce(pg_catalog.pg_sequence_last_value('{s}.qsidecar_sequence'::pg_catalog.regclass), 0)

-- name: behind
-- The sequence's last number if a table has a later id. The statement's snapshot is older than its reading of the
-- sequence, so a job that is stored at the same time has no later id. Each EXISTS reads the end of an index, where usually
-- is nothing.
SELECT s.last FROM (SELECT {last_number} AS last OFFSET 0) s
WHERE EXISTS (SELECT FROM {s}.qsidecar_jobs WHERE id > s.last)
  OR EXISTS (SELECT FROM {s}.qsidecar_keys WHERE job > s.last)
  OR EXISTS (SELECT FROM {s}.qsidecar_failures WHERE job > s.last)

-- name: lock_sequence
-- Makes sidecars repair the sequence one after the other. Otherwise the second one could set it back.
SELECT pg_catalog.pg_advisory_xact_lock(8174995018432086016 + '{s}.qsidecar_sequence'::pg_catalog.regclass::oid::bigint)

-- fragment: new_number
-- It is far above all ids and positions, because other sessions can draw numbers at the same time.
(SELECT max(n) + 10000 FROM (SELECT {last_number} AS n UNION ALL SELECT max(greatest(id, position)) FROM {s}.qsidecar_jobs
    UNION ALL SELECT max(job) FROM {s}.qsidecar_keys UNION ALL SELECT max(job) FROM {s}.qsidecar_failures) numbers)

-- name: repair
-- Sets the sequence, and returns its new number.
SELECT pg_catalog.setval('{s}.qsidecar_sequence', {new_number})

-- name: draw
-- Draws the numbers instead, for a role without the right to set the sequence.
SELECT max({s}.qsidecar_next()) FROM pg_catalog.generate_series(1, least(1000000, {new_number} - {last_number}))
