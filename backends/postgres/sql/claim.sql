-- Statements that claim jobs. Most segments begin where the last claim ended, so that a
-- claim does not walk again over the index entries of jobs that are gone. LIMIT stops the
-- walk, and with it the locking, at the last row that the claim can use.

-- fragment: size_j
-- How many bytes of a row count against the limits: its payload's, and those of headers that are
-- larger than any that a sidecar stores.
octet_length(j.payload) + CASE WHEN pg_column_size(j.headers) > 65536 THEN octet_length(j.headers::text) ELSE 0 END

-- fragment: claim_size_j
-- The same for a claim. An expired row is larger than any that a claim returns (core.SizeExpired).
CASE WHEN j.start_before <= {s}.qsidecar_now() THEN CASE WHEN j.on_expiry = 'delete' THEN 9223372036854775806 ELSE 9223372036854775807 END ELSE {size_j} END

-- fragment: start_within
-- How many milliseconds a claimed job has to start; 0: any. An INSERT can have stored a time that can't be subtracted.
CASE WHEN j.start_before IS NULL OR j.start_before > '9999-12-31 23:59:59.999+00' THEN 0 ELSE greatest(floor(extract(epoch FROM j.start_before - {s}.qsidecar_now()) * 1000)::bigint, 1) END

-- fragment: own_timeout
-- The job's own timeout, within the wire's range: an INSERT can name one that is longer than an
-- interval can be. (least would take the limit for NULL.)
CASE WHEN j.timeout_ms > 316224000000 THEN 316224000000 ELSE j.timeout_ms END

-- fragment: own_retention
-- How long the done job is kept at least, within the wire's range, like {own_timeout}.
CASE WHEN j.retain_ms > 316224000000 THEN 316224000000 ELSE j.retain_ms END

-- fragment: next_fence
-- A number after the row's. After one that only an INSERT can have named, and that is too
-- large to be increased, it is the time.
greatest(CASE WHEN j.fence < 4611686018427387903 THEN j.fence + 1 END, (SELECT (extract(epoch FROM {s}.qsidecar_now()) * 1000000)::bigint))

-- name: claim
-- with except:
{claim_oldest}

-- name: claim_except
-- with except: AND j.id <> ALL(:except::bigint[])
{claim_oldest}

-- fragment: claim_oldest
-- The oldest jobs first. {except} is empty, or leaves out rows that the database refuses to change.
{claim_head}
    SELECT j.id, {claim_size_j} AS size, -j.priority::int AS urgency, j.position
    FROM {s}.qsidecar_jobs j
    WHERE NOT s.paused AND j.state = 'ready' AND j.group_name IS NULL AND j.queue = s.queue
      AND (-j.priority::int, j.position) > (s.from_urgency, s.from_position)
      AND (-j.priority::int, j.position) <= (s.to_urgency, s.to_position) {except}
    ORDER BY -j.priority::int, j.position
    LIMIT :limit FOR UPDATE OF j SKIP LOCKED
{claim_tail}

-- name: claim_lifo
-- with except:
{claim_newest}

-- name: claim_lifo_except
-- with except: AND j.id <> ALL(:except::bigint[])
{claim_newest}

-- fragment: claim_newest
-- The newest jobs first. It goes from priority to priority, because one index cannot be read in
-- both directions at once. Positions are turned round in the answer, so that the order of the
-- rows is the order of the claim.
{claim_head}
    SELECT r.* FROM (
      WITH RECURSIVE p AS (
        (SELECT -j.priority::int AS urgency FROM {s}.qsidecar_jobs j
         WHERE NOT s.paused AND j.state = 'ready' AND j.group_name IS NULL AND j.queue = s.queue ORDER BY -j.priority::int, j.position LIMIT 1)
        UNION ALL
        SELECT (SELECT -j.priority::int FROM {s}.qsidecar_jobs j
          WHERE j.state = 'ready' AND j.group_name IS NULL AND j.queue = s.queue AND -j.priority::int > p.urgency ORDER BY -j.priority::int, j.position LIMIT 1)
        FROM p WHERE p.urgency IS NOT NULL
      ) SELECT urgency FROM p WHERE urgency IS NOT NULL
    ) AS p
    CROSS JOIN LATERAL (
      SELECT j.id, {claim_size_j} AS size, p.urgency, -j.position AS position
      FROM {s}.qsidecar_jobs j
      WHERE j.state = 'ready' AND j.group_name IS NULL AND j.queue = s.queue AND -j.priority::int = p.urgency {except}
      ORDER BY j.position DESC
      LIMIT :limit FOR UPDATE OF j SKIP LOCKED
    ) AS r
{claim_tail}

-- fragment: claim_head
WITH picked AS MATERIALIZED (
  SELECT r.id, r.size, s.policy, s.n, r.urgency, r.position
  FROM (
    SELECT x.*, EXISTS (SELECT FROM {s}.qsidecar_queues q WHERE q.queue = x.queue AND q.paused) AS paused
    FROM unnest(:queues::text[], :policies::int[], :from_urgencies::int[], :from_positions::bigint[], :to_urgencies::int[], :to_positions::bigint[]) WITH ORDINALITY
      AS x (queue, policy, from_urgency, from_position, to_urgency, to_position, n)
  ) AS s
  CROSS JOIN LATERAL (

-- fragment: claim_tail
-- with prefetch: (:prefetches::boolean[])[slot]
-- with backoff: (:backoffs::bigint[])[policy]
-- with backoff_max: (:backoff_maxes::bigint[])[policy]
-- with retention_done: (:retentions_done::bigint[])[policy]
-- with retention_dead: (:retentions_dead::bigint[])[policy]
-- with token_sidecar: (:sidecars::bigint[])[slot]
-- with token_number: (:numbers::bigint[])[slot]
-- with worker: (:workers::text[])[(:worker_indexes::int[])[slot]]
-- with claim_max: claim_max
-- with alone: alone
-- with uncounted: uncounted
-- with lease_ms: lease_ms
-- with limit_ms: limit_ms
-- Gives the i-th row that fits to the i-th slot. Rows that are too large, or that came after the
-- bytes were full, are locked and left as they are. Returns the rows that are given, the rows
-- that are left (slot 0), and how many were to be given (slot -1).
) AS r
  LIMIT :limit
), numbered AS MATERIALIZED (
  SELECT picked.*, sum(size) FILTER (WHERE size <= :max_payload::bigint) OVER w AS total, count(*) FILTER (WHERE size <= :max_payload::bigint) OVER w AS slot
  FROM picked WINDOW w AS (ORDER BY n, urgency, position ROWS UNBOUNDED PRECEDING)
), c AS MATERIALIZED (
  SELECT array_agg(id ORDER BY id) AS ids, array_agg(slot::int ORDER BY id) AS slots, array_agg(policy ORDER BY id) AS policies
  FROM numbered WHERE size <= :max_payload::bigint AND (total <= :max_bytes::bigint OR slot = 1 AND :at_least_one::boolean)
), taken AS (
  UPDATE {s}.qsidecar_jobs j SET {claimed} = (
    SELECT {claim_values}
    FROM (
      SELECT slot, policy, claim_max, alone, ((:prefetches::boolean[])[slot] OR alone AND (:leases::bigint[])[slot] = 0) AND j.prefetch_losses < claim_max AS uncounted,
        nullif((:leases::bigint[])[slot], 0) AS lease_ms, coalesce({own_timeout}, nullif((:timeouts::bigint[])[policy], 0)) AS limit_ms
      FROM (
        SELECT slot, policy, coalesce(j.max_attempts, (:claim_maxes::int[])[policy]) AS claim_max,
          j.losses > 0 AND j.attempts + 1 >= coalesce(j.max_attempts, (:claim_maxes::int[])[policy]) AS alone
        FROM (SELECT c.slots[i] AS slot, c.policies[i] AS policy FROM (SELECT c.*, width_bucket(j.id, c.ids) AS i FROM c OFFSET 0) AS c OFFSET 0) AS x
      ) AS y
    ) AS z)
  WHERE j.id = ANY((SELECT ids FROM c)::bigint[])
  RETURNING width_bucket(j.id, (SELECT ids FROM c)) AS i, j.id, j.priority, j.position, j.attempts + j.prefetched::int AS attempts, j.claim_max, j.fence,
    j.enqueued_at, j.timeout_ms, j.headers::text, j.key, j.last_error, j.losses, j.admitted_group, j.progress, {start_within} AS start_within, j.payload
)
SELECT ((SELECT slots FROM c))[i], ((SELECT policies FROM c))[i], 0, position, id, priority, attempts, claim_max, fence, enqueued_at,
  coalesce(timeout_ms, 0), coalesce(headers, ''), coalesce(key, ''), coalesce(last_error, ''), losses, coalesce(admitted_group, ''), coalesce(progress, 0), start_within, payload
FROM taken
UNION ALL
SELECT 0, policy, size, 0, id, 0, 0, 0, 0, {s}.qsidecar_now(), 0, '', '', '', 0, '', 0, 0, NULL
FROM numbered WHERE NOT (size <= :max_payload::bigint AND (total <= :max_bytes::bigint OR slot = 1 AND :at_least_one::boolean))
UNION ALL
SELECT -1, 0, cardinality(ids), 0, 0, 0, 0, 0, 0, {s}.qsidecar_now(), 0, '', '', '', 0, '', 0, 0, NULL
FROM c WHERE ids IS NOT NULL

-- fragment: claimed
-- What a claim writes, and the columns of {claim_values}. Both claim statements have them.
state = 'claimed', owner = :owner::bigint, claimed_at = {s}.qsidecar_now(), fence = {next_fence},
    (attempts, prefetched, claim_max, backoff_ms, backoff_max_ms, retention_done_ms, retention_dead_ms,
      token_sidecar, token_number, lease_ms, deadline, due_at, worker)

-- fragment: claim_values
-- A job that must be alone (see backends.Job.Alone) is delivered as a prefetched one.
least(j.attempts, 32767) + 1 - ({uncounted})::int, {uncounted}, {claim_max},
      {backoff}, {backoff_max}, greatest(nullif({retention_done}, 0), {own_retention}), nullif({retention_dead}, 0),
      {token_sidecar}, {token_number}, {lease_ms},
      {s}.qsidecar_now() + {limit_ms} * interval '1 ms',
      CASE WHEN NOT ({prefetch} OR {alone} AND {lease_ms} IS NULL) THEN {s}.qsidecar_now() + least({lease_ms}, {limit_ms}) * interval '1 ms' END,
      CASE WHEN NOT ({alone} AND {lease_ms} IS NULL) THEN nullif({worker}, '') END

-- name: claim_lean
-- with slot: ((SELECT slots FROM c))[width_bucket(j.id, (SELECT ids FROM c))]
-- with prefetch: :prefetch::boolean
-- with backoff: :backoff::bigint
-- with backoff_max: :backoff_max::bigint
-- with retention_done: :retention_done::bigint
-- with retention_dead: :retention_dead::bigint
-- with token_sidecar: :token_sidecar::bigint
-- with token_number: (:numbers::bigint[])[{slot}]
-- with worker: (:workers::text[])[(:worker_indexes::int[])[{slot}]]
-- with claim_max: coalesce(j.max_attempts, :claim_max::int)
-- with alone: (j.losses > 0 AND j.attempts + 1 >= {claim_max})
-- with uncounted: ({prefetch} OR {alone} AND {lease_ms} IS NULL) AND j.prefetch_losses < {claim_max}
-- with lease_ms: nullif(:lease::bigint, 0)
-- with limit_ms: coalesce({own_timeout}, nullif(:timeout::bigint, 0))
-- The claim of one queue by slots that differ in nothing but their tokens and workers, which is
-- nearly every claim. It gives what it finds only if all of it fits. Otherwise it gives nothing
-- and sets qsidecar.left for the status.
WITH picked AS MATERIALIZED (
  SELECT r.id, r.size
  FROM unnest(:from_urgencies::int[], :from_positions::bigint[], :to_urgencies::int[], :to_positions::bigint[]) AS s (from_urgency, from_position, to_urgency, to_position)
  CROSS JOIN LATERAL (
    SELECT j.id, {claim_size_j} AS size
    FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NULL AND j.queue = :queue::text AND NOT EXISTS (SELECT FROM {s}.qsidecar_queues q WHERE q.queue = :queue AND q.paused)
      AND (-j.priority::int, j.position) > (s.from_urgency, s.from_position)
      AND (-j.priority::int, j.position) <= (s.to_urgency, s.to_position)
    ORDER BY -j.priority::int, j.position
    LIMIT :limit FOR UPDATE OF j SKIP LOCKED
  ) AS r
  LIMIT :limit
), c AS MATERIALIZED (
  SELECT ids, slots, CASE WHEN total > :max_bytes::bigint OR largest > :max_payload::bigint THEN set_config('qsidecar.left', 'yes', true) END AS word
  FROM (
    SELECT array_agg(id ORDER BY id) AS ids, array_agg(i::int ORDER BY id) AS slots, sum(size) AS total, max(size) AS largest
    FROM (SELECT id, size, row_number() OVER () AS i FROM picked) AS p
  ) AS a
)
UPDATE {s}.qsidecar_jobs j SET {claimed} = ROW({claim_values})
WHERE j.id = ANY((SELECT ids FROM c WHERE word IS NULL)::bigint[])
RETURNING {slot}, cardinality((SELECT ids FROM c)), j.position, j.id, j.priority,
  j.attempts + j.prefetched::int, j.claim_max, j.fence, j.enqueued_at, coalesce(j.timeout_ms, 0),
  coalesce(j.headers::text, ''), coalesce(j.key, ''), coalesce(j.last_error, ''), j.losses, coalesce(j.admitted_group, ''), coalesce(j.progress, 0), {start_within}, j.payload

-- name: bury
-- Makes locked ready jobs dead whose payloads cannot be delivered.
-- A key that another transaction has locked stays as it is: its job shows that it ended. Returns their groups.
WITH l AS MATERIALIZED ({keys_of}(:ids::bigint[]) {in_order} SKIP LOCKED
), b AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'dead', attempts = least(j.attempts, 32767) + 1,
    fence = {next_fence},
    claim_max = coalesce(j.max_attempts, (:claim_maxes::int[])[{at}]), retention_dead_ms = nullif((:retentions_dead::bigint[])[{at}], 0),
    finished_at = {s}.qsidecar_now(), prune_at = {s}.qsidecar_now() + nullif((:retentions_dead::bigint[])[{at}], 0) * interval '1 ms',
    last_error = (:messages::text[])[{at}], group_name = coalesce(j.group_name, j.admitted_group), admitted_group = NULL
  WHERE j.id = ANY(:ids::bigint[]) AND j.state || '' = 'ready'
  RETURNING j.id, j.key, j.fence, j.attempts, j.last_error, j.queue, j.group_name
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, 'too_large', last_error, {s}.qsidecar_now() FROM b
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'dead' WHERE job = ANY(ARRAY(SELECT job FROM l))
)
SELECT DISTINCT queue::text, group_name FROM b WHERE group_name IS NOT NULL

-- name: remove_expired
-- Deletes locked waiting jobs that expired. The key of a deleted job would have to be locked, so those that have one become dead, and are pruned
-- soon. Returns the groups of the deleted ones.
WITH d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY(:ids::bigint[]) AND key IS NULL AND state IN ('ready', 'scheduled') RETURNING queue, coalesce(group_name, admitted_group) AS group_name
)
SELECT DISTINCT queue::text, group_name FROM d WHERE group_name IS NOT NULL

-- name: expire
-- Makes locked waiting jobs dead whose time to start is over. It treats keys as bury does. Returns their groups.
WITH l AS MATERIALIZED ({keys_of}(:ids::bigint[]) {in_order} SKIP LOCKED
), b AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'dead', fence = {next_fence}, run_at = NULL,
    retention_dead_ms = coalesce(nullif((:retentions_dead::bigint[])[{at}], 0), j.retention_dead_ms), finished_at = {s}.qsidecar_now(),
    prune_at = {s}.qsidecar_now() + coalesce(nullif((:retentions_dead::bigint[])[{at}], 0), j.retention_dead_ms) * interval '1 ms',
    last_error = :message, group_name = coalesce(j.group_name, j.admitted_group), admitted_group = NULL
  WHERE j.id = ANY(:ids::bigint[]) AND j.state || '' IN ('ready', 'scheduled')
  RETURNING j.id, j.fence, j.attempts, j.queue, j.group_name
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, 'expired', :message, {s}.qsidecar_now() FROM b
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'dead' WHERE job = ANY(ARRAY(SELECT job FROM l))
)
SELECT DISTINCT queue::text, group_name FROM b WHERE group_name IS NOT NULL

-- name: probe
-- The first ready row of pieces of the index, locked or not.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, ARRAY(
  SELECT coalesce((SELECT j.position FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NULL AND j.queue = :queue
      AND (-j.priority::int, j.position) > (x.urgency, x.low) AND (-j.priority::int, j.position) <= (x.urgency, x.high)
    ORDER BY -j.priority::int, j.position LIMIT 1), 0)
  FROM unnest(:urgencies::int[], :lows::bigint[], :highs::bigint[]) WITH ORDINALITY AS x (urgency, low, high, n)
  ORDER BY x.n)

-- name: owners
-- The xids of the transactions that can own a position. An empty one is that of a holder whose
-- xid is not known: PREPARE TRANSACTION moves locks one by one.
WITH l AS MATERIALIZED (
  SELECT relation, transactionid::text AS xid, virtualtransaction AS holder FROM pg_catalog.pg_locks
  WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
    OR locktype = 'relation' AND mode = 'RowExclusiveLock' AND relation = '{s}.qsidecar_sequence'::regclass
      AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
)
SELECT ARRAY(SELECT coalesce(x.xid, '') FROM l LEFT JOIN l AS x ON x.holder = l.holder AND x.xid IS NOT NULL WHERE l.relation IS NOT NULL)
