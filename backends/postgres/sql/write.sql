-- Statements that store jobs and change claimed ones.

-- name: insert
-- Inserts jobs in the order of the arrays: ids and positions grow with it.
INSERT INTO {s}.qsidecar_jobs (id, position, enqueued_at, ready_at, queue, state, priority, max_attempts, timeout_ms, run_at, headers, payload)
SELECT id, id, {s}.qsidecar_now(), {s}.qsidecar_now(), queue, CASE WHEN due > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
  priority, nullif(max_attempts, 0), nullif(timeout_ms, 0), due, nullif(headers, '')::jsonb, payload
FROM (
  SELECT {s}.qsidecar_next() AS id, x.*,
    CASE WHEN delay_ms > 0 THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE run_at END AS due
  FROM unnest(:queues::text[], :payloads::bytea[], :priorities::smallint[], :delays::bigint[], :run_ats::timestamptz[], :max_attempts::smallint[], :timeouts::bigint[], :headers::text[])
    AS x (queue, payload, priority, delay_ms, run_at, max_attempts, timeout_ms, headers)
) AS j
RETURNING id, state = 'ready'

-- fragment: expiries
-- The columns of jobs that expire, and of those that have a retention of their own.
:start_befores::timestamptz[], :start_withins::bigint[], :on_expiries::text[], :retentions_dead::bigint[], :retains::bigint[]

-- fragment: start_before
-- When such a job expires. start_within_ms counts from when the job is ready first.
CASE WHEN start_within_ms > 0 THEN least(greatest(due, {s}.qsidecar_now()) + start_within_ms * interval '1 ms', '9999-12-31 23:59:59.999+00') ELSE start_before END

-- name: insert_more
-- The same for jobs that have groups, expire, or have a retention of their own. The transaction notes the groups of those that are blocked.
INSERT INTO {s}.qsidecar_jobs (id, position, enqueued_at, ready_at, queue, state, priority, max_attempts, timeout_ms, run_at, headers, payload, group_name, group_noticed,
  start_before, on_expiry, retention_dead_ms, retain_ms)
SELECT id, id, {s}.qsidecar_now(), {s}.qsidecar_now(), queue, CASE WHEN due > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
  priority, nullif(max_attempts, 0), nullif(timeout_ms, 0), due, nullif(headers, '')::jsonb, payload, nullif(group_name, ''), CASE WHEN group_name <> '' THEN true END,
  {start_before}, nullif(on_expiry, ''), nullif(retention_dead_ms, 0), nullif(retain_ms, 0)
FROM (
  SELECT {s}.qsidecar_next() AS id, x.*,
    CASE WHEN delay_ms > 0 THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE run_at END AS due
  FROM unnest(:queues::text[], :payloads::bytea[], :priorities::smallint[], :delays::bigint[], :run_ats::timestamptz[], :max_attempts::smallint[], :timeouts::bigint[], :headers::text[],
      :groups::text[], {expiries})
    AS x (queue, payload, priority, delay_ms, run_at, max_attempts, timeout_ms, headers, group_name, start_before, start_within_ms, on_expiry, retention_dead_ms, retain_ms)
) AS j
RETURNING id, state = 'ready'

-- name: insert_keyed
-- The same for jobs that have a key, each at most once in it. Returns all jobs and whether each
-- will be stored, then the stored ones.
WITH j AS MATERIALIZED (
  SELECT {s}.qsidecar_next() AS id, x.*,
    CASE WHEN delay_ms > 0 THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE run_at END AS due
  FROM unnest(:queues::text[], :payloads::bytea[], :priorities::smallint[], :delays::bigint[], :run_ats::timestamptz[], :max_attempts::smallint[], :timeouts::bigint[], :headers::text[],
      :keys::text[], :key_ttls::bigint[], :key_states::text[], :groups::text[], {expiries}) WITH ORDINALITY
    AS x (queue, payload, priority, delay_ms, run_at, max_attempts, timeout_ms, headers, key, key_ttl_ms, key_state, group_name, start_before, start_within_ms, on_expiry, retention_dead_ms, retain_ms, n)
), k AS (
  INSERT INTO {s}.qsidecar_keys AS k (queue, key, job, expires_at)
  SELECT queue, key, id, {s}.qsidecar_now() + key_ttl_ms * interval '1 ms' FROM j ORDER BY queue, key
  ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, expires_at = excluded.expires_at, state = NULL
    WHERE k.state IS NOT NULL AND k.expires_at <= {s}.qsidecar_now()
  RETURNING job
), i AS (
  INSERT INTO {s}.qsidecar_jobs (id, position, enqueued_at, ready_at, queue, state, priority, max_attempts, timeout_ms, run_at, key, key_state, headers, payload, group_name, group_noticed,
    start_before, on_expiry, retention_dead_ms, retain_ms)
  SELECT id, id, {s}.qsidecar_now(), {s}.qsidecar_now(), queue, CASE WHEN due > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
    priority, nullif(max_attempts, 0), nullif(timeout_ms, 0), due, key, nullif(key_state, ''), nullif(headers, '')::jsonb, payload, nullif(group_name, ''),
    CASE WHEN group_name <> '' THEN true END, {start_before}, nullif(on_expiry, ''), nullif(retention_dead_ms, 0), nullif(retain_ms, 0)
  FROM j WHERE id IN (SELECT job FROM k)
  RETURNING id, state
)
SELECT n, id, id IN (SELECT job FROM k), NULL::boolean FROM j
UNION ALL
SELECT NULL, id, true, state = 'ready' FROM i

-- name: keyed
-- The first jobs that were stored with some keys, and whether the key is free again since the job was claimed.
SELECT x.n, k.job, coalesce(k.state, (SELECT {shown_state} FROM {s}.qsidecar_jobs j WHERE j.id = k.job LIMIT 1), 'deleted'),
  k.state IS NULL AND coalesce((SELECT j.key_state = 'start' AND j.claim_max IS NOT NULL FROM {s}.qsidecar_jobs j WHERE j.id = k.job LIMIT 1), false)
FROM unnest(:queues::text[], :keys::text[]) WITH ORDINALITY AS x (queue, key, n)
CROSS JOIN LATERAL (SELECT k.job, k.state FROM {s}.qsidecar_keys k WHERE k.queue = x.queue AND k.key = x.key LIMIT 1) AS k

-- fragment: at
-- A row's index in the arrays that came with its lease. :ids, the ids, is sorted.
width_bucket(j.id, :ids::bigint[])

-- fragment: leased
-- The rows whose claims the leases prove: no other rows have a token.
j.id = ANY(:ids::bigint[]) AND j.token_sidecar = (:sidecars::bigint[])[{at}] AND j.token_number = (:numbers::bigint[])[{at}]

-- fragment: unclaimed
-- Takes the claim from a row.
prefetched = false, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL,
    claimed_at = NULL, worker = NULL

-- name: ack
-- Ends claims of jobs that are not kept, have neither a key nor a group, and are in no batch.
DELETE FROM {s}.qsidecar_jobs j WHERE {leased} AND j.retention_done_ms IS NULL AND j.key IS NULL AND j.admitted_group IS NULL AND j.batch IS NULL
RETURNING {at}

-- fragment: row
-- What the core needs of a claimed row. The cause, why it is reaped, follows.
j.id, j.queue::text, coalesce(j.key, ''), j.priority, j.position, j.fence, coalesce(j.token_sidecar, 0), coalesce(j.token_number, 0),
  coalesce(j.owner, 0), coalesce(j.lease_ms, 0), j.attempts + j.prefetched::int, coalesce(j.claim_max, 2147483647), j.losses,
  coalesce(j.backoff_ms, 0), coalesce(j.backoff_max_ms, 0), j.prefetched, j.prefetch_losses, j.retention_done_ms IS NOT NULL, j.worker IS NOT NULL,
  coalesce(j.admitted_group, ''), coalesce(j.batch, 0), coalesce(j.key_state = 'pending', false),

-- name: lock
-- Locks claimed rows.
SELECT {row} ''::text FROM {s}.qsidecar_jobs j
WHERE j.id = ANY(:ids::bigint[]) AND j.token_sidecar IS NOT NULL ORDER BY j.id FOR UPDATE

-- name: find_locked
-- Locks the claimed rows that no other transaction has locked, and returns the ids of the others.
WITH free AS MATERIALIZED (
  SELECT j.id FROM {s}.qsidecar_jobs j
  WHERE j.id = ANY(:ids::bigint[]) AND j.token_sidecar IS NOT NULL ORDER BY j.id FOR UPDATE SKIP LOCKED
)
SELECT j.id FROM {s}.qsidecar_jobs j
WHERE j.id = ANY(:ids::bigint[]) AND j.token_sidecar IS NOT NULL AND j.id NOT IN (SELECT id FROM free)

-- fragment: keys_of
-- The rows of the keys of some jobs, in the order in which every transaction locks them. In which way they are
-- locked follows. No transaction waits for a key while it has others: an application that stores keys in another
-- order would be the victim of that deadlock. The || keeps the planner from scanning all keys in that order.
SELECT k.job FROM {s}.qsidecar_keys k WHERE k.job = ANY

-- fragment: in_order
ORDER BY k.queue || '', k.key FOR UPDATE

-- name: find_locked_keys
-- Locks the keys of jobs that no other transaction has locked, and returns the jobs of the others.
WITH free AS MATERIALIZED ({keys_of}(:ids::bigint[]) {in_order} SKIP LOCKED)
{keys_of}(:ids::bigint[]) AND k.job NOT IN (SELECT job FROM free)

-- fragment: limit_end
-- When a claim's time limit ends. If the job was prefetched, it begins now, or :agos milliseconds ago. (greatest and
-- least pass over NULL.)
CASE WHEN j.due_at IS NULL AND j.deadline IS NOT NULL
    THEN {s}.qsidecar_now() + greatest(j.deadline - j.claimed_at - (:agos::bigint[])[{at}] * interval '1 ms', interval '0') ELSE j.deadline END

-- name: deliver
-- Records that prefetched jobs were handed out. To do it twice has no effect.
UPDATE {s}.qsidecar_jobs j SET attempts = j.attempts + j.prefetched::int, prefetched = false, prefetch_losses = 0,
  worker = coalesce(j.worker, nullif((:workers::text[])[{at}], '')),
  deadline = {limit_end}, due_at = coalesce(j.due_at, {limit_end})
WHERE {leased}
RETURNING {at}

-- name: delete_done
-- Deletes acked jobs.
WITH d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY(:ids::bigint[]) RETURNING id, key
), l AS MATERIALIZED ({keys_of}(ARRAY(SELECT id FROM d WHERE key IS NOT NULL)) {in_order} NOWAIT
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'done' WHERE job = ANY(ARRAY(SELECT job FROM l))
)
SELECT id FROM d

-- name: end_claims
-- Writes how claims ended whose jobs stay. A ready job gets a new position, behind the others,
-- unless it is given back (:backs). Returns the ids, and the queue's count of requeues for jobs
-- that are given back.
WITH u AS (
  UPDATE {s}.qsidecar_jobs j SET {unclaimed},
    (state, attempts, losses, prefetch_losses, position, ready_at, run_at, last_error, finished_at, prune_at, result) = (
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
      SELECT (:states::text[])[i] AS state, (:attempts::bigint[])[i] AS attempts, (:losses::bigint[])[i] AS losses, (:prefetch_losses::bigint[])[i] AS prefetch_losses,
        (:backs::boolean[])[i] AS back, (:delays::bigint[])[i] AS delay_ms, (:causes::text[])[i] AS cause, (:messages::text[])[i] AS message, (:results::bytea[])[i] AS result
      FROM (SELECT {at} AS i OFFSET 0) AS x
    ) AS y)
  WHERE j.id = ANY(:ids::bigint[])
  RETURNING {at} AS n, j.id, j.queue, j.key, j.state, j.fence, j.attempts
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, (:causes::text[])[n], (:messages::text[])[n], {s}.qsidecar_now() FROM u WHERE (:causes::text[])[n] <> ''
), l AS MATERIALIZED ({keys_of}(ARRAY(SELECT id FROM u WHERE state IN ('done', 'dead') AND key IS NOT NULL)) {in_order} NOWAIT
), k AS (
  UPDATE {s}.qsidecar_keys k SET state = (SELECT u.state FROM u WHERE u.id = k.job LIMIT 1)
  WHERE k.job = ANY(ARRAY(SELECT job FROM l))
), q AS (
  INSERT INTO {s}.qsidecar_queues AS q (queue, requeues)
  SELECT DISTINCT queue, 1 FROM u WHERE (:backs::boolean[])[n] ORDER BY queue
  ON CONFLICT (queue) DO UPDATE SET requeues = q.requeues + 1
  RETURNING queue, requeues
)
SELECT id, coalesce((SELECT q.requeues FROM q WHERE q.queue = u.queue AND (:backs::boolean[])[n] LIMIT 1), 0) FROM u

-- name: renew_claims
-- Writes claims that go on. Their workers have the jobs for certain.
UPDATE {s}.qsidecar_jobs j SET attempts = (:attempts::bigint[])[{at}], prefetched = false, prefetch_losses = 0,
  lease_ms = nullif((:leases::bigint[])[{at}], 0), owner = (:owners::bigint[])[{at}],
  deadline = {limit_end},
  due_at = CASE WHEN (:new_dues::boolean[])[{at}]
    THEN least({s}.qsidecar_now() + nullif((:leases::bigint[])[{at}], 0) * interval '1 ms', {limit_end}) ELSE coalesce(j.due_at, {limit_end}) END,
  worker = CASE WHEN (:set_workers::boolean[])[{at}] THEN nullif((:workers::text[])[{at}], '') ELSE j.worker END
WHERE j.id = ANY(:ids::bigint[])
RETURNING j.id
