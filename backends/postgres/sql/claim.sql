-- Statements that claim jobs. Most segments begin where the last claim ended, so that a
-- claim does not walk again over the index entries of jobs that are gone. LIMIT stops the
-- walk, and with it the locking, at the last row that the claim can use.

-- fragment: size_j
-- How many bytes of a row count against the limits: its payload's, and those of headers that are
-- larger than any that a sidecar stores.
octet_length(j.payload) + CASE WHEN pg_column_size(j.headers) > 65536 THEN octet_length(j.headers::text) ELSE 0 END

-- fragment: own_timeout
-- The job's own timeout, within the wire's range: an INSERT can name one that is longer than an
-- interval can be. (least would take the limit for NULL.)
CASE WHEN j.timeout_ms > 316224000000 THEN 316224000000 ELSE j.timeout_ms END

-- fragment: next_fence
-- A number after the row's. After one that only an INSERT can have named, and that is too
-- large to be increased, it is the time.
greatest(CASE WHEN j.fence < 4611686018427387903 THEN j.fence + 1 END, (SELECT (extract(epoch FROM {s}.qsidecar_now()) * 1000000)::bigint))

-- name: claim
-- The oldest jobs first. {except} is empty, or leaves out rows that the database refuses to change.
{claim_head}
    SELECT j.id, {size_j} AS size, -j.priority::int AS urgency, j.position
    FROM {s}.qsidecar_jobs j
    WHERE NOT s.paused AND j.state = 'ready' AND j.queue = s.queue
      AND (-j.priority::int, j.position) > (s.from_urgency, s.from_position)
      AND (-j.priority::int, j.position) <= (s.to_urgency, s.to_position){except}
    ORDER BY -j.priority::int, j.position
    LIMIT $1 FOR UPDATE OF j SKIP LOCKED
{claim_tail}

-- name: claim_lifo
-- The newest jobs first. It goes from priority to priority, because one index cannot be read in
-- both directions at once. Positions are turned round in the answer, so that the order of the
-- rows is the order of the claim.
{claim_head}
    SELECT r.* FROM (
      WITH RECURSIVE p AS (
        (SELECT -j.priority::int AS urgency FROM {s}.qsidecar_jobs j
         WHERE NOT s.paused AND j.state = 'ready' AND j.queue = s.queue ORDER BY -j.priority::int, j.position LIMIT 1)
        UNION ALL
        SELECT (SELECT -j.priority::int FROM {s}.qsidecar_jobs j
          WHERE j.state = 'ready' AND j.queue = s.queue AND -j.priority::int > p.urgency ORDER BY -j.priority::int, j.position LIMIT 1)
        FROM p WHERE p.urgency IS NOT NULL
      ) SELECT urgency FROM p WHERE urgency IS NOT NULL
    ) AS p
    CROSS JOIN LATERAL (
      SELECT j.id, {size_j} AS size, p.urgency, -j.position AS position
      FROM {s}.qsidecar_jobs j
      WHERE j.state = 'ready' AND j.queue = s.queue AND -j.priority::int = p.urgency{except}
      ORDER BY j.position DESC
      LIMIT $1 FOR UPDATE OF j SKIP LOCKED
    ) AS r
{claim_tail}

-- fragment: claim_head
WITH picked AS MATERIALIZED (
  SELECT r.id, r.size, s.policy, s.n, r.urgency, r.position
  FROM (
    SELECT x.*, EXISTS (SELECT FROM {s}.qsidecar_queues q WHERE q.queue = x.queue AND q.paused) AS paused
    FROM unnest($4::text[], $5::int[], $6::int[], $7::bigint[], $8::int[], $9::bigint[]) WITH ORDINALITY
      AS x (queue, policy, from_urgency, from_position, to_urgency, to_position, n)
  ) AS s
  CROSS JOIN LATERAL (

-- fragment: claim_tail
-- Gives the i-th row that fits to the i-th slot. Rows that are too large, or that came after the
-- bytes were full, are locked and left as they are. Returns the rows that are given, the rows
-- that are left (slot 0), and how many were to be given (slot -1).
) AS r
  LIMIT $1
), numbered AS MATERIALIZED (
  SELECT picked.*, sum(size) FILTER (WHERE size <= $3::bigint) OVER w AS total, count(*) FILTER (WHERE size <= $3::bigint) OVER w AS slot
  FROM picked WINDOW w AS (ORDER BY n, urgency, position ROWS UNBOUNDED PRECEDING)
), c AS MATERIALIZED (
  SELECT array_agg(id ORDER BY id) AS ids, array_agg(slot::int ORDER BY id) AS slots, array_agg(policy ORDER BY id) AS policies
  FROM numbered WHERE size <= $3::bigint AND (total <= $2::bigint OR slot = 1 AND $22::boolean)
), taken AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'claimed', owner = $21::bigint, claimed_at = {s}.qsidecar_now(),
    fence = {next_fence},
    (attempts, prefetched, claim_max, backoff_ms, backoff_max_ms, retention_done_ms, retention_dead_ms,
      token_sidecar, token_number, lease_ms, deadline, due_at, worker) = (
    SELECT least(j.attempts, 32767) + 1 - uncharged::int, uncharged, claim_max,
      ($12::bigint[])[policy], ($13::bigint[])[policy], nullif(($14::bigint[])[policy], 0), nullif(($15::bigint[])[policy], 0),
      ($16::bigint[])[slot], ($17::bigint[])[slot], lease_ms,
      {s}.qsidecar_now() + limit_ms * interval '1 ms',
      CASE WHEN NOT (($23::boolean[])[slot] OR alone AND lease_ms IS NULL) THEN {s}.qsidecar_now() + least(lease_ms, limit_ms) * interval '1 ms' END,
      CASE WHEN NOT (alone AND lease_ms IS NULL) THEN nullif(($20::text[])[($19::int[])[slot]], '') END
    FROM (
      SELECT slot, policy, claim_max, alone, (($23::boolean[])[slot] OR alone AND ($18::bigint[])[slot] = 0) AND j.prefetch_losses < claim_max AS uncharged,
        nullif(($18::bigint[])[slot], 0) AS lease_ms, coalesce({own_timeout}, nullif(($11::bigint[])[policy], 0)) AS limit_ms
      FROM (
        SELECT slot, policy, coalesce(j.max_attempts, ($10::int[])[policy]) AS claim_max,
          j.losses > 0 AND j.attempts + 1 >= coalesce(j.max_attempts, ($10::int[])[policy]) AS alone
        FROM (SELECT c.slots[i] AS slot, c.policies[i] AS policy FROM (SELECT c.*, width_bucket(j.id, c.ids) AS i FROM c OFFSET 0) AS c OFFSET 0) AS x
      ) AS y
    ) AS z)
  WHERE j.id = ANY((SELECT ids FROM c)::bigint[])
  RETURNING width_bucket(j.id, (SELECT ids FROM c)) AS i, j.id, j.priority, j.position, j.attempts + j.prefetched::int AS attempts, j.claim_max, j.fence,
    j.enqueued_at, j.timeout_ms, j.headers::text, j.key, j.last_error, j.losses, j.payload
)
SELECT ((SELECT slots FROM c))[i], ((SELECT policies FROM c))[i], 0, position, id, priority, attempts, claim_max, fence, enqueued_at,
  coalesce(timeout_ms, 0), coalesce(headers, ''), coalesce(key, ''), coalesce(last_error, ''), losses, payload
FROM taken
UNION ALL
SELECT 0, policy, size, 0, id, 0, 0, 0, 0, {s}.qsidecar_now(), 0, '', '', '', 0, NULL
FROM numbered WHERE NOT (size <= $3::bigint AND (total <= $2::bigint OR slot = 1 AND $22::boolean))
UNION ALL
SELECT -1, 0, cardinality(ids), 0, 0, 0, 0, 0, 0, {s}.qsidecar_now(), 0, '', '', '', 0, NULL
FROM c WHERE ids IS NOT NULL

-- fragment: alone
-- See backends.Job.Alone.
(j.losses > 0 AND j.attempts + 1 >= coalesce(j.max_attempts, $9::int) AND $17::bigint = 0)

-- name: claim_lean
-- The claim of one queue by slots that differ in nothing but their tokens and workers, which is
-- nearly every claim. It gives what it finds only if all of it fits. Otherwise it gives nothing
-- and sets qsidecar.left for the status.
WITH picked AS MATERIALIZED (
  SELECT r.id, r.size
  FROM unnest($5::int[], $6::bigint[], $7::int[], $8::bigint[]) AS s (from_urgency, from_position, to_urgency, to_position)
  CROSS JOIN LATERAL (
    SELECT j.id, {size_j} AS size
    FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.queue = $4::text AND NOT EXISTS (SELECT FROM {s}.qsidecar_queues q WHERE q.queue = $4 AND q.paused)
      AND (-j.priority::int, j.position) > (s.from_urgency, s.from_position)
      AND (-j.priority::int, j.position) <= (s.to_urgency, s.to_position)
    ORDER BY -j.priority::int, j.position
    LIMIT $1 FOR UPDATE OF j SKIP LOCKED
  ) AS r
  LIMIT $1
), c AS MATERIALIZED (
  SELECT ids, slots, CASE WHEN total > $2::bigint OR largest > $3::bigint THEN set_config('qsidecar.left', 'yes', true) END AS word
  FROM (
    SELECT array_agg(id ORDER BY id) AS ids, array_agg(i::int ORDER BY id) AS slots, sum(size) AS total, max(size) AS largest
    FROM (SELECT id, size, row_number() OVER () AS i FROM picked) AS p
  ) AS a
)
UPDATE {s}.qsidecar_jobs j SET state = 'claimed', owner = $20::bigint, claimed_at = {s}.qsidecar_now(),
  fence = {next_fence},
  attempts = least(j.attempts, 32767) + 1 - (($21::boolean OR {alone}) AND j.prefetch_losses < coalesce(j.max_attempts, $9::int))::int,
  prefetched = ($21::boolean OR {alone}) AND j.prefetch_losses < coalesce(j.max_attempts, $9::int),
  claim_max = coalesce(j.max_attempts, $9::int), backoff_ms = $11::bigint, backoff_max_ms = $12::bigint,
  retention_done_ms = nullif($13::bigint, 0), retention_dead_ms = nullif($14::bigint, 0), lease_ms = nullif($17::bigint, 0),
  token_sidecar = $15::bigint, token_number = ($16::bigint[])[((SELECT slots FROM c))[width_bucket(j.id, (SELECT ids FROM c))]],
  deadline = {s}.qsidecar_now() + coalesce({own_timeout}, nullif($10::bigint, 0)) * interval '1 ms',
  due_at = CASE WHEN NOT ($21::boolean OR {alone})
    THEN {s}.qsidecar_now() + least(nullif($17::bigint, 0), coalesce({own_timeout}, nullif($10::bigint, 0))) * interval '1 ms' END,
  worker = CASE WHEN NOT {alone} THEN nullif(($19::text[])[($18::int[])[((SELECT slots FROM c))[width_bucket(j.id, (SELECT ids FROM c))]]], '') END
WHERE j.id = ANY((SELECT ids FROM c WHERE word IS NULL)::bigint[])
RETURNING ((SELECT slots FROM c))[width_bucket(j.id, (SELECT ids FROM c))], cardinality((SELECT ids FROM c)), j.position, j.id, j.priority,
  j.attempts + j.prefetched::int, j.claim_max, j.fence, j.enqueued_at, coalesce(j.timeout_ms, 0),
  coalesce(j.headers::text, ''), coalesce(j.key, ''), coalesce(j.last_error, ''), j.losses, j.payload

-- name: bury
-- Makes locked ready jobs dead whose payloads cannot be delivered.
-- A key that another transaction has locked stays as it is: its job shows that it ended.
WITH l AS MATERIALIZED ({keys_of}($1::bigint[]) {in_order} SKIP LOCKED
), b AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'dead', attempts = least(j.attempts, 32767) + 1,
    fence = {next_fence},
    claim_max = coalesce(j.max_attempts, ($2::int[])[{at}]), retention_dead_ms = nullif(($3::bigint[])[{at}], 0),
    finished_at = {s}.qsidecar_now(), expires_at = {s}.qsidecar_now() + nullif(($3::bigint[])[{at}], 0) * interval '1 ms',
    last_error = ($4::text[])[{at}]
  WHERE j.id = ANY($1::bigint[]) AND j.state || '' = 'ready'
  RETURNING j.id, j.key, j.fence, j.attempts, j.last_error
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, 'too_large', last_error, {s}.qsidecar_now() FROM b
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'dead' WHERE job = ANY(ARRAY(SELECT job FROM l))
)
SELECT count(*) FROM b

-- name: probe
-- The first ready row of pieces of the index, locked or not.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, ARRAY(
  SELECT coalesce((SELECT j.position FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.queue = $1
      AND (-j.priority::int, j.position) > (x.urgency, x.low) AND (-j.priority::int, j.position) <= (x.urgency, x.high)
    ORDER BY -j.priority::int, j.position LIMIT 1), 0)
  FROM unnest($2::int[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS x (urgency, low, high, n)
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
