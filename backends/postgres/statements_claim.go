package postgres

// A claim. Its segments are pieces of the index of ready jobs, in the order in
// which they are looked through: most begin where the last claim ended, so that
// nobody walks again over the entries of jobs that are gone. LIMIT stops the
// walk, and with it the locking, at the last row that is wanted.
const claimHead = `
WITH picked AS MATERIALIZED (
  SELECT r.id, r.size, s.policy, s.n, r.urgency, r.position
  FROM (
    SELECT x.*, EXISTS (SELECT FROM {s}.qsidecar_queues q WHERE q.queue = x.queue AND q.paused) AS paused
    FROM unnest($4::text[], $5::int[], $6::int[], $7::bigint[], $8::int[], $9::bigint[]) WITH ORDINALITY
      AS x (queue, policy, from_urgency, from_position, to_urgency, to_position, n)
  ) AS s
  CROSS JOIN LATERAL (`

const claimFIFO = `
    SELECT j.id, octet_length(j.payload) AS size, -j.priority::int AS urgency, j.position
    FROM {s}.qsidecar_jobs j
    WHERE NOT s.paused AND j.state = 'ready' AND j.queue = s.queue
      AND (-j.priority::int, j.position) > (s.from_urgency, s.from_position)
      AND (-j.priority::int, j.position) <= (s.to_urgency, s.to_position)
    ORDER BY -j.priority::int, j.position
    LIMIT $1 FOR UPDATE OF j SKIP LOCKED`

// claimNewest goes from priority to priority, because one index cannot be read
// in both directions at once. Positions are turned round in what it answers, so
// that the order of the rows is the order of the claim.
const claimNewest = `
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
      SELECT j.id, octet_length(j.payload) AS size, p.urgency, -j.position AS position
      FROM {s}.qsidecar_jobs j
      WHERE j.state = 'ready' AND j.queue = s.queue AND -j.priority::int = p.urgency
      ORDER BY j.position DESC
      LIMIT $1 FOR UPDATE OF j SKIP LOCKED
    ) AS r`

// claimTail gives the i-th row that fits to the i-th slot. Rows that are too
// large, or that came after the bytes were full, are locked and left as they are.
const claimTail = `
  ) AS r
  LIMIT $1
), numbered AS MATERIALIZED (
  SELECT picked.*, sum(size) FILTER (WHERE size <= $3::bigint) OVER w AS total, count(*) FILTER (WHERE size <= $3::bigint) OVER w AS slot
  FROM picked WINDOW w AS (ORDER BY n, urgency, position ROWS UNBOUNDED PRECEDING)
), taken AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'claimed',
    attempts = j.attempts + 1 - (($23::boolean[])[p.slot] AND j.unrecorded < coalesce(j.max_attempts, ($10::int[])[p.policy]))::int,
    ahead = ($23::boolean[])[p.slot] AND j.unrecorded < coalesce(j.max_attempts, ($10::int[])[p.policy]),
    fence = greatest(j.fence + 1, (SELECT (extract(epoch FROM {s}.qsidecar_now()) * 1000000)::bigint)),
    claim_max = coalesce(j.max_attempts, ($10::int[])[p.policy]),
    backoff_ms = ($12::bigint[])[p.policy], backoff_max_ms = ($13::bigint[])[p.policy],
    keep_ms = nullif(($14::bigint[])[p.policy], 0), keep_dead_ms = nullif(($15::bigint[])[p.policy], 0),
    token_host = ($16::bigint[])[p.slot], token_number = ($17::bigint[])[p.slot], owner = $21::bigint,
    lease_ms = nullif(($18::bigint[])[p.slot], 0),
    deadline = {s}.qsidecar_now() + coalesce(j.timeout_ms, nullif(($11::bigint[])[p.policy], 0)) * interval '1 ms',
    due_at = least({s}.qsidecar_now() + nullif(($18::bigint[])[p.slot], 0) * interval '1 ms',
      {s}.qsidecar_now() + coalesce(j.timeout_ms, nullif(($11::bigint[])[p.policy], 0)) * interval '1 ms'),
    claimed_at = {s}.qsidecar_now(), worker = nullif(($20::text[])[($19::int[])[p.slot]], '')
  FROM numbered p
  WHERE j.id = p.id AND p.size <= $3::bigint AND (p.total <= $2::bigint OR p.slot = 1 AND $22::boolean)
  RETURNING p.slot, p.policy, p.size, p.position AS place, j.id, j.priority, j.attempts + j.ahead::int AS attempts, j.claim_max, j.fence, j.enqueued_at, j.timeout_ms,
    j.headers::text, j.key, j.last_error, j.payload
)
SELECT slot, policy, size, place, id, priority, attempts, claim_max, fence, enqueued_at, coalesce(timeout_ms, 0),
  coalesce(headers, ''), coalesce(key, ''), coalesce(last_error, ''), payload
FROM taken
UNION ALL
SELECT 0, policy, size, position, id, 0, 0, 0, 0, {s}.qsidecar_now(), 0, '', '', '', NULL
FROM numbered WHERE NOT (size <= $3::bigint AND (total <= $2::bigint OR slot = 1 AND $22::boolean))`

// burySQL sends locked ready jobs to dead whose payloads cannot be delivered.
const burySQL = `
WITH b AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'dead', attempts = j.attempts + 1,
    fence = greatest(j.fence + 1, (SELECT (extract(epoch FROM {s}.qsidecar_now()) * 1000000)::bigint)),
    claim_max = coalesce(j.max_attempts, x.max_attempts), keep_dead_ms = nullif(x.keep_dead_ms, 0),
    finished_at = {s}.qsidecar_now(), expires_at = {s}.qsidecar_now() + nullif(x.keep_dead_ms, 0) * interval '1 ms', last_error = x.message
  FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::text[]) AS x (id, max_attempts, keep_dead_ms, message)
  WHERE j.id = x.id AND j.state = 'ready'
  RETURNING j.id, j.queue, j.key, j.fence, j.attempts, j.last_error
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, 'too_large', last_error, {s}.qsidecar_now() FROM b
), k AS (
  UPDATE {s}.qsidecar_keys k SET state = 'dead' FROM b WHERE k.queue = b.queue AND k.key = b.key AND k.job = b.id
)
SELECT count(*) FROM b`

// probeSQL finds the first ready row of pieces of the index, locked or not.
const probeSQL = `
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, ARRAY(
  SELECT coalesce((SELECT j.position FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.queue = $1
      AND (-j.priority::int, j.position) > (x.urgency, x.low) AND (-j.priority::int, j.position) <= (x.urgency, x.high)
    ORDER BY -j.priority::int, j.position LIMIT 1), 0)
  FROM unnest($2::int[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS x (urgency, low, high, n)
  ORDER BY x.n)`
