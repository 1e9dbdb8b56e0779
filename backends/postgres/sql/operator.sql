-- Statements of operators: statistics, lists of jobs, commands. {where} and {order} are the
-- condition and the order of a state, as its index has them.

-- name: count
-- Counts a queue's jobs in a state.
SELECT count(*) FROM (SELECT FROM {s}.qsidecar_jobs WHERE {where} AND queue = $1 LIMIT $2) AS c

-- name: stats
-- Counts one queue. {counts} are the counts of all states.
SELECT {s}.qsidecar_now(),
  {counts},
  EXISTS (SELECT FROM {s}.qsidecar_queues WHERE queue = $1 AND paused),
  (SELECT min(claimed_at) FROM {s}.qsidecar_jobs WHERE state = 'claimed' AND queue = $1),
  ({oldest})

-- fragment: oldest
-- The first row of each priority: inside one, positions are given in the order in which rows
-- become ready. {queue} names the queue.
WITH RECURSIVE p AS (
  (SELECT -priority::int AS urgency, ready_at FROM {s}.qsidecar_jobs WHERE state = 'ready' AND queue = {queue} ORDER BY -priority::int, position LIMIT 1)
  UNION ALL
  SELECT n.urgency, n.ready_at FROM p CROSS JOIN LATERAL (
    SELECT -j.priority::int AS urgency, j.ready_at FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.queue = {queue} AND -j.priority::int > p.urgency ORDER BY -j.priority::int, j.position LIMIT 1) AS n
)
SELECT min(ready_at) FROM p

-- name: oldest_of
-- The same for many queues.
SELECT x.queue, {s}.qsidecar_now(), ({oldest})
FROM unnest($1::text[]) AS x (queue)

-- name: queues
-- Counts the rows of all queues that are behind one, at most $2 of them.
SELECT queue::text, '{state}', count(*)
FROM (SELECT queue FROM {s}.qsidecar_jobs WHERE {where} AND queue > $1 ORDER BY queue LIMIT $2) AS p
GROUP BY queue ORDER BY queue

-- name: queues_finished
SELECT queue::text, state::text, count(*)
FROM (
  SELECT queue, state FROM {s}.qsidecar_jobs WHERE finished_at IS NOT NULL AND (queue, state) > ($1, $3) ORDER BY queue, state LIMIT $2
) AS p
GROUP BY queue, state ORDER BY queue, state

-- name: queues_claimed
SELECT {s}.qsidecar_now(), queue::text, count(*), min(claimed_at) FROM {s}.qsidecar_jobs WHERE state = 'claimed' GROUP BY queue

-- name: queues_paused
SELECT queue FROM {s}.qsidecar_queues WHERE paused

-- name: place
-- Where a list that follows a job goes on.
SELECT -priority::int, position, run_at, claimed_at, finished_at FROM {s}.qsidecar_jobs WHERE id = $1 AND queue = $2

-- fragment: size
octet_length(payload) + CASE WHEN pg_column_size(headers) > 65536 THEN octet_length(headers::text) ELSE 0 END

-- name: peek_ready
SELECT id, {size} FROM {s}.qsidecar_jobs
WHERE state = 'ready' AND queue = $1 AND (-priority::int, position) > ($2::int, $3::bigint)
ORDER BY -priority::int, position LIMIT $4

-- name: peek_scheduled
SELECT id, {size} FROM {s}.qsidecar_jobs
WHERE state = 'scheduled' AND queue = $1 AND (run_at, id) > ($2::timestamptz, $3::bigint)
ORDER BY run_at, id LIMIT $4

-- name: peek_claimed
SELECT id, {size} FROM {s}.qsidecar_jobs
WHERE state = 'claimed' AND queue = $1 AND (claimed_at, id) > ($2::timestamptz, $3::bigint)
ORDER BY claimed_at, id LIMIT $4

-- name: peek_done
SELECT id, {size} + coalesce(octet_length(result), 0) FROM {s}.qsidecar_jobs
WHERE finished_at IS NOT NULL AND queue = $1 AND state = $5 AND (finished_at, id) > ($2::timestamptz, $3::bigint)
ORDER BY finished_at, id LIMIT $4

-- name: peek_newest
SELECT id, {size} + coalesce(octet_length(result), 0) FROM {s}.qsidecar_jobs
WHERE finished_at IS NOT NULL AND queue = $1 AND state = $5 AND (finished_at, id) < ($2::timestamptz, $3::bigint)
ORDER BY finished_at DESC, id DESC LIMIT $4

-- name: chosen
-- The sizes of named jobs.
SELECT j.id, j.size
FROM unnest($1::bigint[]) WITH ORDINALITY AS x (id, n)
CROSS JOIN LATERAL (
  SELECT j.id, {size_j} + coalesce(octet_length(j.result), 0) AS size
  FROM {s}.qsidecar_jobs j WHERE j.id = x.id AND j.queue = $2 LIMIT 1
) AS j
ORDER BY x.n

-- name: key_holder
SELECT job FROM {s}.qsidecar_keys WHERE queue = $1 AND key = $2

-- name: view
SELECT j.id, j.queue, j.state, j.payload, j.priority, j.attempts, coalesce(j.claim_max, j.max_attempts, 0), j.enqueued_at,
  j.run_at, j.claimed_at, j.finished_at, coalesce(j.worker, ''), coalesce(j.key, ''), coalesce(j.headers::text, ''), j.result
FROM unnest($1::bigint[]) WITH ORDINALITY AS x (id, n)
CROSS JOIN LATERAL (SELECT * FROM {s}.qsidecar_jobs j WHERE j.id = x.id AND j.queue = $2 LIMIT 1) AS j
ORDER BY x.n

-- name: failures
SELECT job, attempt, cause, message, at FROM {s}.qsidecar_failures WHERE job = ANY($1::bigint[]) ORDER BY job, fence

-- name: retry
-- Makes dead jobs ready and gives them their keys back. A job whose key another one has stays dead,
-- and the second number is below the first. The last columns are how many jobs it read, and
-- the last of them.
WITH t AS MATERIALIZED (
  SELECT id, queue, key, finished_at FROM {s}.qsidecar_jobs
  WHERE state = 'dead' AND queue = $1 AND {ids}
  FOR UPDATE
), l AS MATERIALIZED (
  SELECT FROM {s}.qsidecar_keys k WHERE k.queue = $1 AND k.key IN (SELECT key FROM t WHERE key IS NOT NULL) {in_order} NOWAIT
), k AS (
  INSERT INTO {s}.qsidecar_keys AS k (queue, key, job, expires_at)
  SELECT DISTINCT ON (queue, key) queue, key, id, {s}.qsidecar_now() FROM t
  WHERE key IS NOT NULL AND (SELECT count(*) FROM l) >= 0 ORDER BY queue, key, id
  ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, state = NULL,
    expires_at = CASE WHEN k.job = excluded.job THEN k.expires_at ELSE excluded.expires_at END
    WHERE k.job = excluded.job OR k.state IS NOT NULL AND k.expires_at <= {s}.qsidecar_now()
  RETURNING job
), u AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'ready', position = {s}.qsidecar_next(), ready_at = {s}.qsidecar_now(),
    attempts = 0, losses = 0, prefetch_losses = 0, finished_at = NULL, expires_at = NULL
  WHERE j.id = ANY(ARRAY(SELECT id FROM t WHERE key IS NULL OR id IN (SELECT job FROM k)))
  RETURNING 1
)
SELECT (SELECT count(*) FROM t WHERE key IS NOT NULL), (SELECT count(*) FROM k), (SELECT count(*) FROM u), (SELECT count(*) FROM t),
  coalesce((SELECT max(finished_at) FROM t), {s}.qsidecar_now()), coalesce((SELECT id FROM t ORDER BY finished_at DESC, id DESC LIMIT 1), 0)

-- fragment: changed_due
CASE WHEN $4::bigint IS NOT NULL THEN {s}.qsidecar_now() + $4::bigint * interval '1 ms' WHEN $5::timestamptz IS NOT NULL THEN $5::timestamptz
    WHEN j.state = 'scheduled' THEN j.run_at END

-- name: change
-- Changes the priority ($3) or the time ($4 from now, or $5) of jobs that wait. It locks the rows first, so that
-- none of them is claimed in between. A fence above 0 frees rows from a CHECK that is younger than they are.
WITH t AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs
  WHERE id = ANY($2::bigint[]) AND queue = $1 AND state IN ('ready', 'scheduled')
  FOR UPDATE
), u AS (
  UPDATE {s}.qsidecar_jobs j SET priority = coalesce($3::smallint, j.priority), fence = greatest(j.fence, 1),
    state = CASE WHEN {changed_due} > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
    run_at = CASE WHEN {changed_due} > {s}.qsidecar_now() THEN {changed_due} END,
    position = CASE WHEN {changed_due} > {s}.qsidecar_now() THEN j.position ELSE {s}.qsidecar_next() END,
    ready_at = CASE WHEN {changed_due} > {s}.qsidecar_now() THEN j.ready_at ELSE {s}.qsidecar_now() END
  WHERE j.id = ANY(ARRAY(SELECT id FROM t)) AND j.state IN ('ready', 'scheduled')
  RETURNING j.state = 'ready' AS ready
)
SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u), (SELECT coalesce(bool_or(ready), false) FROM u)

-- name: keys_taken
-- Whether a retry of all dead jobs of a queue would give one a key that another job has. Each key
-- is looked up by the index, however many there are.
SELECT EXISTS (
  SELECT FROM {s}.qsidecar_jobs j
  CROSS JOIN LATERAL (
    SELECT FROM {s}.qsidecar_keys k
    WHERE k.queue = $1 AND k.key = j.key AND k.job <> j.id AND (k.state IS NULL OR k.expires_at > {s}.qsidecar_now()) LIMIT 1
  ) AS k
  WHERE j.state = 'dead' AND j.queue = $1 AND j.finished_at IS NOT NULL AND j.key IS NOT NULL
)

-- name: keys_twice
-- Whether two dead jobs of a queue have one key.
SELECT EXISTS (
  SELECT FROM {s}.qsidecar_jobs
  WHERE state = 'dead' AND queue = $1 AND finished_at IS NOT NULL AND key IS NOT NULL
  GROUP BY key HAVING count(*) > 1
)

-- fragment: deleting
-- Removes the rows p and notes it in their keys.
, d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY(ARRAY(SELECT id FROM p)) RETURNING id, key
), l AS MATERIALIZED ({keys_of}(ARRAY(SELECT id FROM d WHERE key IS NOT NULL)) {in_order} NOWAIT
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'deleted' WHERE job = ANY(ARRAY(SELECT job FROM l))
)
SELECT (SELECT count(*) FROM p), (SELECT count(*) FROM d)

-- name: delete
WITH p AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs WHERE id = ANY($2::bigint[]) AND queue = $1 AND state <> 'claimed' FOR UPDATE
){deleting}

-- name: purge
-- Deletes at most $2 rows in a state, after a position. The last columns are the position of the last of them.
WITH p AS MATERIALIZED (
  SELECT id, {first} AS a, {second} AS b FROM {s}.qsidecar_jobs
  WHERE {where} AND queue = $1 AND ({order}) > ($3::{type}, $4::bigint) ORDER BY {order} LIMIT $2 FOR UPDATE SKIP LOCKED
){deleting},
  coalesce((SELECT a FROM p ORDER BY a DESC, b DESC LIMIT 1), $3), coalesce((SELECT b FROM p ORDER BY a DESC, b DESC LIMIT 1), $4)

-- name: pause
INSERT INTO {s}.qsidecar_queues (queue, paused) VALUES ($1, true) ON CONFLICT (queue) DO UPDATE SET paused = true

-- name: resume
UPDATE {s}.qsidecar_queues SET paused = false WHERE queue = $1 AND paused

-- name: any_ready
SELECT EXISTS (SELECT FROM {s}.qsidecar_jobs WHERE state = 'ready' AND queue = $1)
