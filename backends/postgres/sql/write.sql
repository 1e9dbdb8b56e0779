-- Statements that store jobs and change claimed ones. Each is "-- name: X" and its text.
-- A fragment is put in where its name stands in braces; {s} is the schema.

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: unsynced
-- The commit is answered before it is on disk.
SELECT pg_catalog.set_config('synchronous_commit', 'off', true)

-- name: unsynced_claim
-- The same, unless a standby takes over without losing commits: there a lost claim would let two workers run one job.
SELECT pg_catalog.set_config('synchronous_commit', 'off', true) WHERE pg_catalog.current_setting('synchronous_standby_names') = ''

-- name: status
-- The last statement before a COMMIT: the number of the transaction, empty if it wrote nothing.
SELECT coalesce(pg_current_xact_id_if_assigned()::text, '')

-- fragment: claim_status
-- Also, for a transaction that claims: whether its sidecar $1 is alive, the oldest transaction
-- that writes, and whether a lean claim left something.
SELECT coalesce(pg_current_xact_id_if_assigned()::text, ''),
  EXISTS (SELECT FROM {s}.qsidecar_sidecars WHERE sidecar = $1 AND NOT dead AND NOT has_left),
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
  coalesce(current_setting('qsidecar.left', true), '') <> ''

-- name: status_of_one
-- And how often jobs of one queue were given back.
{claim_status},
  ARRAY[coalesce((SELECT requeues FROM {s}.qsidecar_queues WHERE queue = ($2::text[])[1]), 0)]

-- name: status_of_many
-- The same for many queues, in their order.
{claim_status},
  ARRAY(SELECT coalesce((SELECT q.requeues FROM {s}.qsidecar_queues q WHERE q.queue = x.queue LIMIT 1), 0)
    FROM unnest($2::text[]) WITH ORDINALITY AS x (queue, n) ORDER BY x.n)

-- name: insert
-- Inserts jobs in the order of the arrays: ids and positions grow with it.
INSERT INTO {s}.qsidecar_jobs (id, position, enqueued_at, ready_at, queue, state, priority, max_attempts, timeout_ms, run_at, headers, payload)
SELECT id, id, {s}.qsidecar_now(), {s}.qsidecar_now(), queue, CASE WHEN due > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
  priority, nullif(max_attempts, 0), nullif(timeout_ms, 0), due, nullif(headers, '')::jsonb, payload
FROM (
  SELECT {s}.qsidecar_next() AS id, x.*,
    CASE WHEN delay_ms > 0 THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE run_at END AS due
  FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::smallint[], $7::bigint[], $8::text[])
    AS x (queue, payload, priority, delay_ms, run_at, max_attempts, timeout_ms, headers)
) AS j
RETURNING id, state = 'ready'

-- name: insert_keyed
-- The same for jobs that have a key, each at most once in it. Returns all jobs and whether each
-- will be stored, then the stored ones.
WITH j AS MATERIALIZED (
  SELECT {s}.qsidecar_next() AS id, x.*,
    CASE WHEN delay_ms > 0 THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE run_at END AS due
  FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::smallint[], $7::bigint[], $8::text[],
      $9::text[], $10::bigint[]) WITH ORDINALITY
    AS x (queue, payload, priority, delay_ms, run_at, max_attempts, timeout_ms, headers, key, key_ttl_ms, n)
), k AS (
  INSERT INTO {s}.qsidecar_keys AS k (queue, key, job, expires_at)
  SELECT queue, key, id, {s}.qsidecar_now() + key_ttl_ms * interval '1 ms' FROM j ORDER BY queue, key
  ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, expires_at = excluded.expires_at, state = NULL
    WHERE k.state IS NOT NULL AND k.expires_at <= {s}.qsidecar_now()
  RETURNING job
), i AS (
  INSERT INTO {s}.qsidecar_jobs (id, position, enqueued_at, ready_at, queue, state, priority, max_attempts, timeout_ms, run_at, key, headers, payload)
  SELECT id, id, {s}.qsidecar_now(), {s}.qsidecar_now(), queue, CASE WHEN due > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
    priority, nullif(max_attempts, 0), nullif(timeout_ms, 0), due, key, nullif(headers, '')::jsonb, payload
  FROM j WHERE id IN (SELECT job FROM k)
  RETURNING id, state
)
SELECT n, id, id IN (SELECT job FROM k), NULL::boolean FROM j
UNION ALL
SELECT NULL, id, true, state = 'ready' FROM i

-- name: keyed
-- The first jobs that were stored with some keys.
SELECT x.n, k.job, coalesce(k.state, (SELECT j.state FROM {s}.qsidecar_jobs j WHERE j.id = k.job LIMIT 1), 'deleted')
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS x (queue, key, n)
CROSS JOIN LATERAL (SELECT k.job, k.state FROM {s}.qsidecar_keys k WHERE k.queue = x.queue AND k.key = x.key LIMIT 1) AS k

-- fragment: at
-- A row's index in the arrays that came with its lease. $1, the ids, is sorted.
width_bucket(j.id, $1::bigint[])

-- fragment: leased
-- The rows whose claims the leases prove: no other rows have a token.
j.id = ANY($1::bigint[]) AND j.token_sidecar = ($2::bigint[])[{at}] AND j.token_number = ($3::bigint[])[{at}]

-- fragment: unclaimed
-- Takes the claim from a row.
prefetched = false, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL,
    claimed_at = NULL, worker = NULL

-- name: ack
-- Ends claims of jobs that are not kept and have no key.
DELETE FROM {s}.qsidecar_jobs j WHERE {leased} AND j.retention_done_ms IS NULL AND j.key IS NULL
RETURNING {at}

-- fragment: row
-- What the core needs of a claimed row. The cause, why it is reaped, follows.
j.id, j.queue::text, coalesce(j.key, ''), j.priority, j.position, j.fence, coalesce(j.token_sidecar, 0), coalesce(j.token_number, 0),
  coalesce(j.owner, 0), coalesce(j.lease_ms, 0), j.attempts + j.prefetched::int, coalesce(j.claim_max, 2147483647), j.losses,
  coalesce(j.backoff_ms, 0), coalesce(j.backoff_max_ms, 0), j.prefetched, j.prefetch_losses, j.retention_done_ms IS NOT NULL, j.worker IS NOT NULL,

-- name: lock
-- Locks claimed rows.
SELECT {row} ''::text FROM {s}.qsidecar_jobs j
WHERE j.id = ANY($1::bigint[]) AND j.token_sidecar IS NOT NULL ORDER BY j.id FOR UPDATE

-- name: find_locked
-- Locks the claimed rows that no other transaction has locked, and returns the ids of the others.
WITH free AS MATERIALIZED (
  SELECT j.id FROM {s}.qsidecar_jobs j
  WHERE j.id = ANY($1::bigint[]) AND j.token_sidecar IS NOT NULL ORDER BY j.id FOR UPDATE SKIP LOCKED
)
SELECT j.id FROM {s}.qsidecar_jobs j
WHERE j.id = ANY($1::bigint[]) AND j.token_sidecar IS NOT NULL AND j.id NOT IN (SELECT id FROM free)

-- fragment: keys_of
-- The rows of the keys of some jobs, in the order in which every transaction locks them. In which way they are
-- locked follows. No transaction waits for a key while it has others: an application that stores keys in another
-- order would be the victim of that deadlock. The || keeps the planner from scanning all keys in that order.
SELECT k.job FROM {s}.qsidecar_keys k WHERE k.job = ANY

-- fragment: in_order
ORDER BY k.queue || '', k.key FOR UPDATE

-- name: find_locked_keys
-- Locks the keys of jobs that no other transaction has locked, and returns the jobs of the others.
WITH free AS MATERIALIZED ({keys_of}($1::bigint[]) {in_order} SKIP LOCKED)
{keys_of}($1::bigint[]) AND k.job NOT IN (SELECT job FROM free)

-- name: lock_claimed
-- Locks claimed jobs of a queue, whichever sidecar owns them.
SELECT {row} ''::text FROM {s}.qsidecar_jobs j
WHERE j.id = ANY($2::bigint[]) AND j.queue = $1 AND j.token_sidecar IS NOT NULL ORDER BY j.id FOR UPDATE

-- fragment: limit_end
-- When a claim's time limit ends. If the job was prefetched, it begins now, or $5 milliseconds ago. (greatest and
-- least pass over NULL.)
CASE WHEN j.due_at IS NULL AND j.deadline IS NOT NULL
    THEN {s}.qsidecar_now() + greatest(j.deadline - j.claimed_at - ($5::bigint[])[{at}] * interval '1 ms', interval '0') ELSE j.deadline END

-- name: deliver
-- Records that prefetched jobs were handed out. To do it twice has no effect.
UPDATE {s}.qsidecar_jobs j SET attempts = j.attempts + j.prefetched::int, prefetched = false, prefetch_losses = 0,
  worker = coalesce(j.worker, nullif(($4::text[])[{at}], '')),
  deadline = {limit_end}, due_at = coalesce(j.due_at, {limit_end})
WHERE {leased}
RETURNING {at}

-- name: delete_done
-- Deletes acked jobs.
WITH d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY($1::bigint[]) RETURNING id, key
), l AS MATERIALIZED ({keys_of}(ARRAY(SELECT id FROM d WHERE key IS NOT NULL)) {in_order} NOWAIT
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'done' WHERE job = ANY(ARRAY(SELECT job FROM l))
)
SELECT id FROM d

-- name: end_claims
-- Writes how claims ended whose jobs stay. A ready job gets a new position, behind the others,
-- unless it is given back ($6). Returns the ids, and the queue's count of requeues for jobs
-- that are given back.
WITH u AS (
  UPDATE {s}.qsidecar_jobs j SET {unclaimed},
    (state, attempts, losses, prefetch_losses, position, ready_at, run_at, last_error, finished_at, expires_at, result) = (
    SELECT state, attempts, losses, prefetch_losses,
      CASE WHEN state = 'ready' AND NOT back THEN {s}.qsidecar_next() ELSE j.position END,
      CASE WHEN state = 'ready' AND NOT back THEN {s}.qsidecar_now() ELSE j.ready_at END,
      CASE WHEN state = 'scheduled' THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE j.run_at END,
      CASE WHEN cause = '' THEN j.last_error ELSE message END,
      CASE WHEN state IN ('done', 'dead') THEN {s}.qsidecar_now() END,
      CASE state WHEN 'done' THEN {s}.qsidecar_now() + j.retention_done_ms * interval '1 ms'
        WHEN 'dead' THEN {s}.qsidecar_now() + j.retention_dead_ms * interval '1 ms' END,
      result
    FROM (
      SELECT ($2::text[])[i] AS state, ($3::bigint[])[i] AS attempts, ($4::bigint[])[i] AS losses, ($5::bigint[])[i] AS prefetch_losses,
        ($6::boolean[])[i] AS back, ($7::bigint[])[i] AS delay_ms, ($8::text[])[i] AS cause, ($9::text[])[i] AS message, ($10::bytea[])[i] AS result
      FROM (SELECT {at} AS i OFFSET 0) AS x
    ) AS y)
  WHERE j.id = ANY($1::bigint[])
  RETURNING {at} AS n, j.id, j.queue, j.key, j.state, j.fence, j.attempts
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, ($8::text[])[n], ($9::text[])[n], {s}.qsidecar_now() FROM u WHERE ($8::text[])[n] <> ''
), l AS MATERIALIZED ({keys_of}(ARRAY(SELECT id FROM u WHERE state IN ('done', 'dead') AND key IS NOT NULL)) {in_order} NOWAIT
), k AS (
  UPDATE {s}.qsidecar_keys k SET state = (SELECT u.state FROM u WHERE u.id = k.job LIMIT 1)
  WHERE k.job = ANY(ARRAY(SELECT job FROM l))
), q AS (
  INSERT INTO {s}.qsidecar_queues AS q (queue, requeues)
  SELECT DISTINCT queue, 1 FROM u WHERE ($6::boolean[])[n] ORDER BY queue
  ON CONFLICT (queue) DO UPDATE SET requeues = q.requeues + 1
  RETURNING queue, requeues
)
SELECT id, coalesce((SELECT q.requeues FROM q WHERE q.queue = u.queue AND ($6::boolean[])[n] LIMIT 1), 0) FROM u

-- name: renew_claims
-- Writes claims that go on. Their workers have the jobs for certain.
UPDATE {s}.qsidecar_jobs j SET attempts = ($2::bigint[])[{at}], prefetched = false, prefetch_losses = 0,
  lease_ms = nullif(($3::bigint[])[{at}], 0), owner = ($4::bigint[])[{at}],
  deadline = {limit_end},
  due_at = CASE WHEN ($6::boolean[])[{at}]
    THEN least({s}.qsidecar_now() + nullif(($3::bigint[])[{at}], 0) * interval '1 ms', {limit_end}) ELSE coalesce(j.due_at, {limit_end}) END,
  worker = CASE WHEN ($7::boolean[])[{at}] THEN nullif(($8::text[])[{at}], '') ELSE j.worker END
WHERE j.id = ANY($1::bigint[])
RETURNING j.id
