-- Statements of maintenance.

-- name: cancelled
-- Claims of a sidecar that a cancel ended, as pairs of numbers.
SELECT token_sidecar, token_number FROM {s}.qsidecar_cancelled WHERE owner = :owner

-- name: forget_cancelled
DELETE FROM {s}.qsidecar_cancelled c USING unnest(:sidecars::bigint[], :numbers::bigint[]) AS x (sidecar, number)
WHERE c.owner = :owner AND c.token_sidecar = x.sidecar AND c.token_number = x.number

-- name: forget_owners
-- What a cancel has stored for owners that aren't alive.
DELETE FROM {s}.qsidecar_cancelled c WHERE NOT EXISTS (SELECT FROM {s}.qsidecar_sidecars h WHERE h.sidecar = c.owner AND NOT h.dead)

-- name: look
-- with cancelled: ARRAY(SELECT unnest(ARRAY[token_sidecar, token_number]) FROM {s}.qsidecar_cancelled WHERE owner = :sidecar)
-- with batches: NOT :watched AND ((SELECT true FROM {s}.qsidecar_batch_notes ORDER BY batch, note LIMIT 1) IS NOT NULL OR (SELECT true FROM {s}.qsidecar_batches WHERE state = 'closed' ORDER BY state, id LIMIT 1) IS NOT NULL OR (SELECT true FROM {s}.qsidecar_batches WHERE state = 'cancelling' ORDER BY state, id LIMIT 1) IS NOT NULL OR (SELECT true FROM {s}.qsidecar_batches WHERE expires_at <= (extract(epoch FROM {s}.qsidecar_now()) * 1000)::bigint ORDER BY expires_at LIMIT 1) IS NOT NULL)
-- with fires_at: (SELECT next_at FROM {s}.qsidecar_schedules WHERE next_at IS NOT NULL AND adopted <= :schedules::bigint ORDER BY next_at LIMIT 1)
{looking}

-- name: look_jobs
-- The same without the tables of cancelled claims, of schedules and of batches, if one of them is out of order.
-- with cancelled: ARRAY(SELECT :sidecar::bigint WHERE false)
-- with fires_at: (SELECT :schedules::bigint WHERE false)
-- with batches: false
{looking}

-- fragment: looking
-- What maintenance has to do: all that an idle sidecar asks in a second. :prune: also look for what
-- retention deletes; :owners: also for claims whose owners are not alive (it steps through the owners,
-- of which there are as many as sidecars); then the pieces of the index of ready jobs for which
-- workers wait; :jobs_from: where looking for what retention deletes begins; :watched: others look for
-- dead sidecars; :due_from: where looking for due jobs begins; :schedules: which schedules matter.
SELECT {s}.qsidecar_now(),
  (SELECT run_at FROM {s}.qsidecar_jobs WHERE state = 'scheduled' AND run_at >= coalesce(:due_from::timestamptz, '-infinity') AND run_at <= {due_until}
    ORDER BY run_at, id LIMIT 1),
  (SELECT due_at FROM {s}.qsidecar_jobs WHERE due_at IS NOT NULL AND due_at >= coalesce(:due_from::timestamptz, '-infinity') AND due_at <= {due_until}
    ORDER BY due_at LIMIT 1),
  NOT :watched::boolean AND EXISTS (SELECT FROM {s}.qsidecar_sidecars WHERE dead),
  (SELECT prune_at FROM {s}.qsidecar_jobs
    WHERE :prune::boolean AND prune_at IS NOT NULL AND prune_at <= {s}.qsidecar_now() AND prune_at >= coalesce(:jobs_from::timestamptz, '-infinity')
    ORDER BY prune_at LIMIT 1),
  ARRAY(
    WITH RECURSIVE o AS (
      (SELECT owner FROM {s}.qsidecar_jobs WHERE :owners::boolean AND state = 'claimed' ORDER BY owner LIMIT 1)
      UNION ALL
      SELECT (SELECT owner FROM {s}.qsidecar_jobs j WHERE j.state = 'claimed' AND j.owner > o.owner ORDER BY j.owner LIMIT 1)
      FROM o WHERE o.owner IS NOT NULL
    )
    SELECT owner FROM o
    WHERE owner <> 0 AND NOT EXISTS (SELECT FROM {s}.qsidecar_sidecars h WHERE h.sidecar = o.owner AND NOT h.dead)),
  ARRAY(
    SELECT x.policy
    FROM unnest(:queues::text[], :policies::int[], :from_urgencies::int[], :from_positions::bigint[], :to_urgencies::int[], :to_positions::bigint[])
      AS x (queue, policy, from_urgency, from_position, to_urgency, to_position)
    WHERE (SELECT true FROM {s}.qsidecar_jobs j
      WHERE j.state = 'ready' AND j.group_name IS NULL AND j.queue = x.queue
        AND (-j.priority::int, j.position) > (x.from_urgency, x.from_position)
        AND (-j.priority::int, j.position) <= (x.to_urgency, x.to_position) LIMIT 1)),
  ARRAY(SELECT coalesce((SELECT q.requeues FROM {s}.qsidecar_queues q WHERE q.queue = x.queue LIMIT 1), 0)
    FROM unnest(:requeues_of::text[]) WITH ORDINALITY AS x (queue, n) ORDER BY x.n),
  (SELECT id FROM {s}.qsidecar_jobs
    WHERE :prune::boolean AND state = 'scheduled' AND run_at >= '9999-12-31 23:59:59.999001+00' ORDER BY run_at, id LIMIT 1),
  {cancelled},
  {fires_at},
  {batches},
  (SELECT true FROM {s}.qsidecar_jobs WHERE NOT :watched AND state = 'ready' AND group_name IS NOT NULL ORDER BY queue, group_name, -priority::int, position LIMIT 1) IS NOT NULL
    OR (SELECT true FROM {s}.qsidecar_jobs WHERE NOT :watched AND admitted_group IS NOT NULL ORDER BY queue, admitted_group, state LIMIT 1) IS NOT NULL,
  (SELECT start_before FROM {s}.qsidecar_jobs
    WHERE start_before IS NOT NULL AND state IN ('ready', 'scheduled') AND start_before >= coalesce(:due_from::timestamptz, '-infinity') AND start_before <= {due_until}
    ORDER BY start_before LIMIT 1)

-- fragment: due_until
CASE WHEN :due_from::timestamptz IS NULL THEN 'infinity' ELSE {s}.qsidecar_now() + {due_within} * interval '1 ms' END

-- name: look_keys
-- The first key that retention deletes, from :from on. It is not a part of look: without a right on the table of the keys, jobs
-- still have to become ready.
SELECT expires_at FROM {s}.qsidecar_keys
WHERE state IS NOT NULL AND expires_at <= {s}.qsidecar_now() AND expires_at >= coalesce(:from::timestamptz, '-infinity')
ORDER BY expires_at LIMIT 1

-- name: promote
-- Makes due jobs ready, in the order in which they are due, from an instant on. A fence above 0 frees rows from a
-- CHECK that is younger than they are. Returns the queue of each, or '' if it is blocked. :only: only these jobs, if it isn't NULL.
WITH d AS MATERIALIZED (
  SELECT id, {s}.qsidecar_next() AS position FROM (
    SELECT id FROM {s}.qsidecar_jobs WHERE state = 'scheduled' AND run_at >= coalesce(:from::timestamptz, '-infinity') AND run_at <= {s}.qsidecar_now()
      AND (:only::bigint[] IS NULL OR id = ANY(:only))
    ORDER BY run_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
  ) AS d
), a AS MATERIALIZED (
  SELECT array_agg(id ORDER BY id) AS ids, array_agg(position ORDER BY id) AS positions FROM d
)
UPDATE {s}.qsidecar_jobs j SET state = 'ready', ready_at = {s}.qsidecar_now(), fence = greatest(j.fence, 1), group_noticed = NULL,
  position = ((SELECT positions FROM a))[width_bucket(j.id, (SELECT ids FROM a))]
WHERE j.id = ANY((SELECT ids FROM a)::bigint[])
RETURNING CASE WHEN j.group_name IS NULL THEN j.queue ELSE '' END

-- name: lock_expired
-- Locks waiting jobs whose time to start is over, from an instant on. :only is as in promote.
SELECT id, queue::text, coalesce(on_expiry = 'delete', false) FROM {s}.qsidecar_jobs
WHERE start_before IS NOT NULL AND state IN ('ready', 'scheduled') AND start_before >= coalesce(:from::timestamptz, '-infinity') AND start_before <= {s}.qsidecar_now()
  AND (:only::bigint[] IS NULL OR id = ANY(:only))
ORDER BY start_before LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: find_scheduled
SELECT id, queue::text FROM {s}.qsidecar_jobs
WHERE state = 'scheduled' AND run_at >= coalesce(:from::timestamptz, '-infinity') AND run_at <= {s}.qsidecar_now()
ORDER BY run_at, id LIMIT :limit

-- name: find_expired
SELECT id, queue::text FROM {s}.qsidecar_jobs
WHERE prune_at IS NOT NULL AND prune_at <= {s}.qsidecar_now() AND prune_at >= :from
ORDER BY prune_at LIMIT :limit

-- name: lock_due
-- Locks claims whose lease or time limit is over, from an instant on.
SELECT {row} CASE WHEN j.deadline <= j.due_at THEN 'timed_out' ELSE 'lease_ended' END
FROM {s}.qsidecar_jobs j
WHERE j.due_at IS NOT NULL AND j.due_at >= coalesce(:from::timestamptz, '-infinity') AND j.due_at <= {s}.qsidecar_now()
ORDER BY j.due_at LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: lock_lost
-- Locks claims of owners that are not alive.
SELECT {row} 'sidecar_lost'
FROM {s}.qsidecar_jobs j
WHERE j.state = 'claimed' AND j.owner = ANY(:owners::bigint[])
LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: mark_dead
UPDATE {s}.qsidecar_sidecars h SET dead = true FROM unnest(:sidecars::bigint[], :heartbeats::bigint[]) AS x (sidecar, heartbeats)
WHERE h.sidecar = x.sidecar AND h.heartbeats = x.heartbeats AND ({expired}) AND NOT h.dead

-- name: forget
-- Deletes the rows of dead sidecars that own no job.
DELETE FROM {s}.qsidecar_sidecars h
WHERE h.dead AND (SELECT true FROM {s}.qsidecar_jobs j WHERE j.state = 'claimed' AND j.owner = h.sidecar LIMIT 1) IS NULL

-- name: prune_jobs
-- Deletes what expired, from an instant on. Returns how many, and when the last of them expired. :only is as in promote.
WITH d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY(ARRAY(
    SELECT id FROM {s}.qsidecar_jobs WHERE prune_at IS NOT NULL AND prune_at <= {s}.qsidecar_now() AND prune_at >= :from
      AND (:only::bigint[] IS NULL OR id = ANY(:only))
    ORDER BY prune_at LIMIT :limit FOR UPDATE SKIP LOCKED))
  RETURNING prune_at
)
SELECT count(*), max(prune_at) FROM d

-- name: prune_keys
WITH d AS (
  DELETE FROM {s}.qsidecar_keys WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {s}.qsidecar_keys WHERE state IS NOT NULL AND expires_at <= {s}.qsidecar_now() AND expires_at >= :from
    ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED))
  RETURNING expires_at
)
SELECT count(*), max(expires_at) FROM d
