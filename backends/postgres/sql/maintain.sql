-- Statements of heartbeats and of maintenance.

-- name: join
-- Begins a sidecar's row, with the latest version of the tables that the program supports. All three heartbeats have the
-- same parameters. $4: return all peers.
WITH b AS (
  INSERT INTO {s}.qsidecar_sidecars AS h (sidecar, name, heartbeats, expires_at, timeout_ms, max_version, joined_at, stats_leader, version, leases)
  VALUES ($1, $2, 1, {s}.qsidecar_now() + $3::bigint * interval '1 ms', $3, {max_version}, {s}.qsidecar_now(), $5, $6, $7)
  ON CONFLICT (sidecar) DO UPDATE SET name = excluded.name, heartbeats = h.heartbeats + 1, expires_at = excluded.expires_at, timeout_ms = excluded.timeout_ms,
    stats_leader = excluded.stats_leader, version = excluded.version, leases = excluded.leases
    WHERE NOT h.dead AND NOT h.has_left
  RETURNING 1
)
{peers}

-- name: renew
WITH b AS (
  UPDATE {s}.qsidecar_sidecars SET name = $2, heartbeats = heartbeats + 1, expires_at = {s}.qsidecar_now() + $3::bigint * interval '1 ms', timeout_ms = $3,
    stats_leader = $5, version = $6, leases = $7
  WHERE sidecar = $1 AND NOT dead AND NOT has_left
  RETURNING pg_catalog.set_config('synchronous_commit', 'off', true)
)
{peers}

-- name: leave
WITH b AS (
  UPDATE {s}.qsidecar_sidecars SET name = $2, heartbeats = heartbeats + 1, expires_at = {s}.qsidecar_now() + $3::bigint * interval '1 ms', timeout_ms = $3,
    stats_leader = $5, version = $6, leases = $7, has_left = true
  WHERE sidecar = $1 AND NOT dead
  RETURNING 1
)
{peers}

-- fragment: peers
-- The other sidecars. If enough of them watch, then without $4 only those up to the last watcher.
SELECT b.n, w.last IS NOT NULL, coalesce(h.sidecar, 0), coalesce(h.heartbeats, 0), coalesce({expired}, false), coalesce(h.dead, false),
  coalesce((extract(epoch FROM h.expires_at - {s}.qsidecar_now()) * 1000)::bigint, 0), coalesce(h.has_left, false), coalesce(h.timeout_ms, -1),
  coalesce(h.stats_leader, false), coalesce(h.name, ''), coalesce(h.version, ''), coalesce(h.leases, -1)
FROM (SELECT count(*) AS n FROM b) AS b
CROSS JOIN (SELECT (SELECT sidecar FROM {s}.qsidecar_sidecars
  WHERE sidecar < $1 AND NOT dead AND NOT has_left AND expires_at <= {s}.qsidecar_now() + timeout_ms * interval '1 ms'
    AND expires_at >= {s}.qsidecar_now() + {in_time} * timeout_ms * interval '1 ms'
  ORDER BY sidecar LIMIT 1 OFFSET {watchers} - 1) AS last OFFSET 0) AS w
LEFT JOIN {s}.qsidecar_sidecars h ON h.sidecar <> $1 AND h.sidecar <= CASE WHEN $4::boolean OR w.last IS NULL THEN 9223372036854775807 ELSE w.last END
ORDER BY h.sidecar

-- fragment: expired
-- A heartbeat's time is over, or it would last for longer than any heartbeat does: the server's
-- clock was set back since, and its end is of no use. A living sidecar renews it by the new clock
-- soon. The rows of sidecars that left, with times of their own, wait for the clock.
h.expires_at <= {s}.qsidecar_now()
  OR NOT h.has_left AND h.expires_at > {s}.qsidecar_now() + h.timeout_ms * interval '1 ms'

-- name: claimed_by
SELECT id, token_sidecar, token_number, queue, lease_ms IS NOT NULL
FROM {s}.qsidecar_jobs
WHERE state = 'claimed' AND owner = $1 AND id > $2
ORDER BY id LIMIT $3

-- name: look
-- What maintenance has to do: all that an idle sidecar asks in a second. $1: also look for what
-- retention deletes; $2: also for claims whose owners are not alive (it steps through the owners,
-- of which there are as many as sidecars); then the pieces of the index of ready jobs for which
-- workers wait; $10: where looking for what retention deletes begins; $11: others look for
-- dead sidecars; $12: where looking for due jobs begins.
SELECT {s}.qsidecar_now(),
  (SELECT run_at FROM {s}.qsidecar_jobs WHERE state = 'scheduled' AND run_at >= coalesce($12::timestamptz, '-infinity') AND run_at <= {due_until}
    ORDER BY run_at, id LIMIT 1),
  (SELECT due_at FROM {s}.qsidecar_jobs WHERE due_at IS NOT NULL AND due_at >= coalesce($12::timestamptz, '-infinity') AND due_at <= {due_until}
    ORDER BY due_at LIMIT 1),
  NOT $11::boolean AND EXISTS (SELECT FROM {s}.qsidecar_sidecars WHERE dead),
  (SELECT expires_at FROM {s}.qsidecar_jobs
    WHERE $1::boolean AND expires_at IS NOT NULL AND expires_at <= {s}.qsidecar_now() AND expires_at >= coalesce($10::timestamptz, '-infinity')
    ORDER BY expires_at LIMIT 1),
  ARRAY(
    WITH RECURSIVE o AS (
      (SELECT owner FROM {s}.qsidecar_jobs WHERE $2::boolean AND state = 'claimed' ORDER BY owner LIMIT 1)
      UNION ALL
      SELECT (SELECT owner FROM {s}.qsidecar_jobs j WHERE j.state = 'claimed' AND j.owner > o.owner ORDER BY j.owner LIMIT 1)
      FROM o WHERE o.owner IS NOT NULL
    )
    SELECT owner FROM o
    WHERE owner <> 0 AND NOT EXISTS (SELECT FROM {s}.qsidecar_sidecars h WHERE h.sidecar = o.owner AND NOT h.dead)),
  ARRAY(
    SELECT x.policy
    FROM unnest($3::text[], $4::int[], $5::int[], $6::bigint[], $7::int[], $8::bigint[])
      AS x (queue, policy, from_urgency, from_position, to_urgency, to_position)
    WHERE (SELECT true FROM {s}.qsidecar_jobs j
      WHERE j.state = 'ready' AND j.queue = x.queue
        AND (-j.priority::int, j.position) > (x.from_urgency, x.from_position)
        AND (-j.priority::int, j.position) <= (x.to_urgency, x.to_position) LIMIT 1)),
  ARRAY(SELECT coalesce((SELECT q.requeues FROM {s}.qsidecar_queues q WHERE q.queue = x.queue LIMIT 1), 0)
    FROM unnest($9::text[]) WITH ORDINALITY AS x (queue, n) ORDER BY x.n),
  (SELECT id FROM {s}.qsidecar_jobs
    WHERE $1::boolean AND state = 'scheduled' AND run_at >= '9999-12-31 23:59:59.999001+00' ORDER BY run_at, id LIMIT 1)

-- fragment: due_until
CASE WHEN $12::timestamptz IS NULL THEN 'infinity' ELSE {s}.qsidecar_now() + {due_within} * interval '1 ms' END

-- name: look_keys
-- The first key that retention deletes, from $1 on. It is not a part of look: without a right on the table of the keys, jobs
-- still have to become ready.
SELECT expires_at FROM {s}.qsidecar_keys
WHERE state IS NOT NULL AND expires_at <= {s}.qsidecar_now() AND expires_at >= coalesce($1::timestamptz, '-infinity')
ORDER BY expires_at LIMIT 1

-- name: promote
-- Makes due jobs ready, in the order in which they are due, from an instant on. A fence above 0 frees rows from a
-- CHECK that is younger than they are. $3: only these jobs, if it isn't NULL.
WITH d AS MATERIALIZED (
  SELECT id, {s}.qsidecar_next() AS position FROM (
    SELECT id FROM {s}.qsidecar_jobs WHERE state = 'scheduled' AND run_at >= coalesce($2::timestamptz, '-infinity') AND run_at <= {s}.qsidecar_now()
      AND ($3::bigint[] IS NULL OR id = ANY($3))
    ORDER BY run_at, id LIMIT $1 FOR UPDATE SKIP LOCKED
  ) AS d
), a AS MATERIALIZED (
  SELECT array_agg(id ORDER BY id) AS ids, array_agg(position ORDER BY id) AS positions FROM d
)
UPDATE {s}.qsidecar_jobs j SET state = 'ready', ready_at = {s}.qsidecar_now(), fence = greatest(j.fence, 1),
  position = ((SELECT positions FROM a))[width_bucket(j.id, (SELECT ids FROM a))]
WHERE j.id = ANY((SELECT ids FROM a)::bigint[])
RETURNING j.queue

-- name: find_scheduled
SELECT id, queue::text FROM {s}.qsidecar_jobs
WHERE state = 'scheduled' AND run_at >= coalesce($2::timestamptz, '-infinity') AND run_at <= {s}.qsidecar_now()
ORDER BY run_at, id LIMIT $1

-- name: find_expired
SELECT id, queue::text FROM {s}.qsidecar_jobs
WHERE expires_at IS NOT NULL AND expires_at <= {s}.qsidecar_now() AND expires_at >= $2
ORDER BY expires_at LIMIT $1

-- name: lock_due
-- Locks claims whose lease or time limit is over, from an instant on.
SELECT {row} CASE WHEN j.deadline <= j.due_at THEN 'timed_out' ELSE 'lease_ended' END
FROM {s}.qsidecar_jobs j
WHERE j.due_at IS NOT NULL AND j.due_at >= coalesce($2::timestamptz, '-infinity') AND j.due_at <= {s}.qsidecar_now()
ORDER BY j.due_at LIMIT $1 FOR UPDATE SKIP LOCKED

-- name: lock_lost
-- Locks claims of owners that are not alive.
SELECT {row} 'sidecar_lost'
FROM {s}.qsidecar_jobs j
WHERE j.state = 'claimed' AND j.owner = ANY($1::bigint[])
LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: mark_dead
UPDATE {s}.qsidecar_sidecars h SET dead = true FROM unnest($1::bigint[], $2::bigint[]) AS x (sidecar, heartbeats)
WHERE h.sidecar = x.sidecar AND h.heartbeats = x.heartbeats AND ({expired}) AND NOT h.dead

-- name: forget
-- Deletes the rows of dead sidecars that own no job.
DELETE FROM {s}.qsidecar_sidecars h
WHERE h.dead AND (SELECT true FROM {s}.qsidecar_jobs j WHERE j.state = 'claimed' AND j.owner = h.sidecar LIMIT 1) IS NULL

-- name: prune_jobs
-- Deletes what expired, from an instant on. Returns how many, and when the last of them expired. $3 is as in promote.
WITH d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY(ARRAY(
    SELECT id FROM {s}.qsidecar_jobs WHERE expires_at IS NOT NULL AND expires_at <= {s}.qsidecar_now() AND expires_at >= $2
      AND ($3::bigint[] IS NULL OR id = ANY($3))
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))
  RETURNING expires_at
)
SELECT count(*), max(expires_at) FROM d

-- name: prune_keys
WITH d AS (
  DELETE FROM {s}.qsidecar_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {s}.qsidecar_keys WHERE state IS NOT NULL AND expires_at <= {s}.qsidecar_now() AND expires_at >= $2
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))
  RETURNING expires_at
)
SELECT count(*), max(expires_at) FROM d
