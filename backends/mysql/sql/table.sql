-- How statements reach the rows of qsidecar_jobs: see ../migrate/schema.sql.

-- fragment: jobs
-- The table with its index forced.
qsidecar_jobs FORCE INDEX (qsidecar_segments)

-- fragment: by_id
-- The table with its primary key forced, for statements that lock rows by a list of ids. Without it the server scans a
-- table that is small compared with the list, and waits for rows that other programs have inserted and not committed.
qsidecar_jobs FORCE INDEX (PRIMARY)

-- fragment: delete_by_id
-- If it read no column but the id, the server would scan a small table in spite of the forced index.
DELETE FROM j USING qsidecar_jobs AS j FORCE INDEX (PRIMARY) WHERE id IN (:ids) AND {uncovered}

-- fragment: keys
-- The table of keys for statements that lock rows. They lock, or fail at, all rows that they scan. The server scans only the
-- keys that they name, in the order of the index, if they have no ORDER BY and read the column job.
qsidecar_keys FORCE INDEX (PRIMARY)

-- fragment: uncovered
-- A condition that each row meets. `state` isn't in the index, so the index doesn't have all columns of a statement with
-- this condition. Otherwise MySQL prefers a walk over the whole index to a range of it if its statistics count hardly any
-- rows. While another session keeps a snapshot open, that walk is over each entry that can't be purged yet.
state <> ''

-- fragment: no_pushdown
-- It follows SELECT in statements that read ranges of the index. With index condition pushdown InnoDB notices the end of
-- a range only at an entry that is not dead (seen with MySQL 9.7). While another session keeps a snapshot open, that can be
-- after all entries of the jobs that are gone, also of other queues. For MariaDB it is a comment, and MariaDB does that either way.
/*+ NO_ICP(qsidecar_jobs) */

-- fragment: in_segment
-- The condition that a row is in one `segment`, for statements that begin in the midst of it. With `segment` = :segment the
-- server could choose to begin there, or to find the start of the `segment` and walk all of it, over each entry that can't be
-- purged yet. While another session keeps a snapshot open, MariaDB's statistics make it choose the walk.
segment >= :segment AND segment <= :segment AND {uncovered}

-- fragment: in_order
-- The order of the index, for statements with {in_segment}.
segment, urgency, sort_key, id

-- fragment: bytes
-- How many bytes of a row count against the limits: the payload, and headers that are larger than those that a sidecar stores.
LENGTH(payload) + IF(LENGTH(headers) > 65536, LENGTH(headers), 0)

-- fragment: shown_state
-- The state of a job.
IF(j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL, 'blocked', j.state)
