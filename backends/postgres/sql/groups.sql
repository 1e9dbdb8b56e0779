-- Statements of groups. backends/internal/core/groups.go describes them.

-- name: note_groups
INSERT INTO {s}.qsidecar_admissions (queue, group_name) SELECT * FROM unnest(:queues::text[], :groups::text[])

-- name: leave_groups
-- Takes the slots from jobs that ended, or that give them up during their back-off.
UPDATE {s}.qsidecar_jobs j SET group_name = j.admitted_group, admitted_group = NULL
WHERE j.id = ANY(:ids::bigint[]) AND coalesce(j.admitted_group, '') <> ''
  AND (j.state IN ('done', 'dead') OR j.state = 'scheduled' AND (SELECT {skips} FROM {s}.qsidecar_queues q WHERE q.queue = j.queue))

-- fragment: skips
-- Whether failed jobs of the queue q give up their slots: also if there are slots for any number.
(q.group_skips IS TRUE OR q.group_limit IS NULL AND q.group_ready IS NOT NULL)

-- name: lock_stripes
-- It always writes: clusters with several writing servers compare only writes. The stripes are in order.
INSERT INTO {s}.qsidecar_stripes AS l (queue, stripe) SELECT * FROM unnest(:queues::text[], :stripes::int[])
ON CONFLICT (queue, stripe) DO UPDATE SET passes = l.passes + 1

-- name: lock_free_stripes
-- Does the same, but leaves out stripes that other transactions have locked, and those that don't exist yet. Returns the others.
INSERT INTO {s}.qsidecar_stripes AS l (queue, stripe)
SELECT f.queue, f.stripe FROM unnest(:queues::text[], :stripes::int[]) AS x (queue, stripe) CROSS JOIN LATERAL (
  SELECT s.queue, s.stripe FROM {s}.qsidecar_stripes s WHERE s.queue = x.queue AND s.stripe = x.stripe
  ORDER BY s.queue, s.stripe LIMIT 1 FOR UPDATE SKIP LOCKED
) AS f
ON CONFLICT (queue, stripe) DO UPDATE SET passes = l.passes + 1
RETURNING queue::text, stripe

-- name: take_notes
-- Deletes what the next statements see to. With a lock on their stripes, no other admission waits for these rows.
WITH n AS MATERIALIZED (
  SELECT a.ctid AS place FROM unnest(:queues::text[], :groups::text[]) AS x (queue, name)
  CROSS JOIN LATERAL (
    SELECT a.ctid FROM {s}.qsidecar_admissions a WHERE a.queue = x.queue AND a.group_name = x.name
    ORDER BY a.queue, a.group_name, a.note LIMIT :limit FOR UPDATE SKIP LOCKED
  ) AS a
)
DELETE FROM {s}.qsidecar_admissions WHERE ctid = ANY(ARRAY(SELECT place FROM n))

-- name: take_arrived
-- Marks blocked jobs as noticed.
WITH n AS MATERIALIZED (
  SELECT j.id FROM unnest(:queues::text[], :groups::text[]) AS x (queue, name)
  CROSS JOIN LATERAL (
    SELECT j.id FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.group_noticed IS NULL AND j.queue = x.queue AND j.group_name = x.name
    ORDER BY j.queue, j.group_name LIMIT :limit FOR UPDATE SKIP LOCKED
  ) AS j
  LIMIT :limit
)
UPDATE {s}.qsidecar_jobs SET group_noticed = true, fence = greatest(fence, 1) WHERE id = ANY(ARRAY(SELECT id FROM n))

-- fragment: slots
-- The groups, with how many slots each has, how many jobs have one, by their states, and how many can be ready.
SELECT s.n, s.queue, s.name, s.limits[1] AS most, s.limits[2] AS most_ready, s.counts[1] AS claimed, s.counts[2] AS delayed, s.counts[3] AS ready FROM (
    SELECT x.n, x.queue, x.name,
      coalesce((SELECT ARRAY[coalesce(q.group_limit, CASE WHEN q.group_ready IS NULL THEN 1 ELSE {any_number} END), coalesce(q.group_ready, {any_number})]
        FROM {s}.qsidecar_queues q WHERE q.queue = x.queue), ARRAY[1, {any_number}]) AS limits,
      (SELECT ARRAY[count(*) FILTER (WHERE a.state = 'claimed'), count(*) FILTER (WHERE a.state = 'scheduled'), count(*) FILTER (WHERE a.state = 'ready')]
        FROM {s}.qsidecar_jobs a WHERE a.queue = x.queue AND a.admitted_group = x.name) AS counts
    FROM unnest(:queues::text[], :groups::text[]) WITH ORDINALITY AS x (queue, name, n) OFFSET 0
  ) AS s

-- fragment: any_number
2147483647::bigint

-- fragment: places
-- How many of the ready and blocked jobs of the group x can have slots.
greatest(least(x.most - x.claimed - x.delayed, x.most_ready), 0)

-- name: find_waiting
-- The groups with slots of jobs that no worker has: only these can have too many, or the slots that other jobs need.
SELECT x.n, x.delayed > 0, x.ready > 0 FROM (
  {slots}
) AS x WHERE x.delayed > 0 OR x.ready > 0 ORDER BY x.n

-- name: leave_delayed
-- Takes the slots beyond the limit from jobs in their back-off. Returns from how many.
WITH x AS MATERIALIZED (
  {slots}
), c AS MATERIALIZED (
  SELECT r.id FROM x CROSS JOIN LATERAL (
    SELECT a.id FROM {s}.qsidecar_jobs a WHERE a.queue = x.queue AND a.admitted_group = x.name AND a.admitted_group IS NOT NULL AND a.state || '' = 'scheduled'
    ORDER BY -a.priority::int, a.position, a.id OFFSET greatest(x.most - x.claimed, 0) LIMIT :limit
  ) AS r
  WHERE x.delayed > 0 AND x.claimed + x.delayed > x.most
), l AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs
  WHERE id = ANY(ARRAY(SELECT id FROM c)) AND coalesce(admitted_group, '') <> '' AND state || '' = 'scheduled' FOR UPDATE SKIP LOCKED
), u AS (
  UPDATE {s}.qsidecar_jobs SET group_name = admitted_group, admitted_group = NULL WHERE id = ANY(ARRAY(SELECT id FROM l)) RETURNING 1
)
SELECT count(*) FROM u

-- name: block
-- Blocks admitted jobs again that no worker has: the last of those beyond the limit, and those whose slots blocked jobs of a higher
-- priority need. Returns how many. Rows that a claim has locked stay as they are. The expressions keep the planner from other
-- indexes than that of the ids.
WITH x AS MATERIALIZED (
  {slots}
), c AS MATERIALIZED (
  SELECT r.id, r.blocked, {places} AS places,
    greatest(x.ready - :limit, 0) + row_number() OVER (PARTITION BY x.n ORDER BY r.urgency, r.blocked, r.position, r.id) AS place
  FROM x CROSS JOIN LATERAL (
    (SELECT a.id, -a.priority::int AS urgency, false AS blocked, a.position FROM {s}.qsidecar_jobs a
    WHERE a.queue = x.queue AND a.admitted_group = x.name AND a.admitted_group IS NOT NULL AND a.state = 'ready'
    ORDER BY -a.priority::int DESC, a.position DESC, a.id DESC LIMIT :limit)
    UNION ALL
    (SELECT j.id, -j.priority::int, true, j.position FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.queue = x.queue AND j.group_name = x.name
    ORDER BY -j.priority::int, j.position LIMIT least({places}, :limit))
  ) AS r
  WHERE x.ready > 0
), l AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs
  WHERE id = ANY(ARRAY(SELECT id FROM c WHERE NOT blocked AND place > places)) AND coalesce(admitted_group, '') <> '' AND state || '' = 'ready' FOR UPDATE SKIP LOCKED
), u AS (
  UPDATE {s}.qsidecar_jobs SET group_name = admitted_group, admitted_group = NULL, group_noticed = true WHERE id = ANY(ARRAY(SELECT id FROM l)) RETURNING 1
)
SELECT count(*) FROM u

-- name: admit
-- Gives free slots to the first blocked jobs of each group. They keep their positions. In queues with group_ready they get new
-- ones, first the first ones of all groups, then the second ones, and so on. If one of them is locked, its slot stays
-- free: the next job must not overtake it. Returns those that were admitted with the queue's count of requeues, or 0 after a new position, and -1 for
-- each of the others, then one row for each group that has more blocked jobs and free slots than :limit, or more slots than the limit.
WITH x AS MATERIALIZED (
  {slots}
), h AS MATERIALIZED (
  SELECT x.n, x.most_ready < {any_number} AS fair, r.id, r.place FROM x CROSS JOIN LATERAL (
    SELECT f.id, row_number() OVER () AS place FROM (
      SELECT j.id FROM {s}.qsidecar_jobs j
      WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.queue = x.queue AND j.group_name = x.name
      ORDER BY -j.priority::int, j.position LIMIT greatest(least({places} - x.ready, :limit), 0)
    ) AS f
  ) AS r
), l AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs WHERE id = ANY(ARRAY(SELECT id FROM h)) AND coalesce(group_name, '') <> '' AND state || '' = 'ready' FOR UPDATE SKIP LOCKED
), p AS MATERIALIZED (
  SELECT o.id, CASE WHEN o.fair THEN {s}.qsidecar_next() END AS position FROM (
    SELECT h.id, h.fair FROM h WHERE h.id = ANY(ARRAY(SELECT id FROM l)) ORDER BY h.place, h.n) AS o
), a AS MATERIALIZED (
  SELECT array_agg(id ORDER BY id) AS ids, array_agg(position ORDER BY id) AS positions FROM p
), u AS (
  UPDATE {s}.qsidecar_jobs j SET admitted_group = j.group_name, group_name = NULL, group_noticed = NULL, fence = greatest(j.fence, 1),
    position = coalesce(((SELECT positions FROM a))[width_bucket(j.id, (SELECT ids FROM a))], j.position)
  WHERE j.id = ANY((SELECT ids FROM a)::bigint[])
  RETURNING j.id, j.queue, -j.priority::int AS urgency, j.position, ((SELECT positions FROM a))[width_bucket(j.id, (SELECT ids FROM a))] IS NOT NULL AS fair
), q AS (
  INSERT INTO {s}.qsidecar_queues AS q (queue, requeues) SELECT DISTINCT queue, 1 FROM u WHERE NOT fair ORDER BY queue
  ON CONFLICT (queue) DO UPDATE SET requeues = q.requeues + 1
  RETURNING queue, requeues
)
SELECT 0, u.queue::text, u.urgency, u.position, CASE WHEN u.fair THEN 0 ELSE (SELECT q.requeues FROM q WHERE q.queue = u.queue) END FROM u
UNION ALL
SELECT h.n, '', 0, 0, -1 FROM h WHERE h.id <> ALL(ARRAY(SELECT id FROM u))
UNION ALL
SELECT x.n, '', 0, 0, -1 FROM x
WHERE {places} - x.ready > :limit AND (SELECT count(*) FROM h WHERE h.n = x.n) = :limit
  OR x.ready > {places} OR x.delayed > greatest(x.most - x.claimed, 0)

-- name: group_slots
SELECT id, state FROM {s}.qsidecar_jobs
WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group ORDER BY queue, admitted_group, state LIMIT :limit

-- name: find_groups
-- Groups that possibly have something to change: noted ones, those with jobs that no sidecar has noticed, and those with blocked jobs or
-- slots. It steps through the groups, not through the rows.
WITH RECURSIVE noted AS (
  SELECT :noted_queue::text COLLATE "C" AS queue, :noted_group::text COLLATE "C" AS name, 0 AS n
  UNION ALL
  SELECT r.queue, r.group_name, w.n + 1 FROM noted w CROSS JOIN LATERAL (
    SELECT a.queue, a.group_name FROM {s}.qsidecar_admissions a WHERE (a.queue, a.group_name) > (w.queue, w.name)
    ORDER BY a.queue, a.group_name, a.note LIMIT 1) AS r
  WHERE w.n < :noted_limit::int
), arrived AS (
  SELECT :arrived_queue::text COLLATE "C" AS queue, :arrived_group::text COLLATE "C" AS name, 0 AS n
  UNION ALL
  SELECT r.queue, r.group_name, w.n + 1 FROM arrived w CROSS JOIN LATERAL (
    SELECT j.queue::text AS queue, j.group_name FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.group_noticed IS NULL AND (j.queue, j.group_name) > (w.queue, w.name)
    ORDER BY j.queue, j.group_name LIMIT 1) AS r
  WHERE w.n < :arrived_limit::int
), every AS (
  SELECT :every_queue::text COLLATE "C" AS queue, :every_group::text COLLATE "C" AS name, 0 AS n
  UNION ALL
  SELECT r.queue, r.name, w.n + 1 FROM every w CROSS JOIN LATERAL (
    SELECT g.queue, g.name FROM (
      (SELECT j.queue::text AS queue, j.group_name AS name FROM {s}.qsidecar_jobs j
      WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND (j.queue, j.group_name) > (w.queue, w.name)
      ORDER BY j.queue, j.group_name, -j.priority::int, j.position LIMIT 1)
      UNION ALL
      (SELECT j.queue::text, j.admitted_group FROM {s}.qsidecar_jobs j
      WHERE j.admitted_group IS NOT NULL AND (j.queue, j.admitted_group) > (w.queue, w.name)
      ORDER BY j.queue, j.admitted_group, j.state LIMIT 1)
    ) AS g ORDER BY g.queue, g.name LIMIT 1) AS r
  WHERE w.n < :every_limit::int
)
SELECT source, queue, name FROM (
  SELECT 0 AS source, queue, name, n FROM noted
  UNION ALL
  SELECT 1, queue, name, n FROM arrived
  UNION ALL
  SELECT 2, queue, name, n FROM every
) AS f WHERE n > 0 ORDER BY source, n

-- name: note_all
-- Notes all groups of a queue that have blocked or admitted jobs, after its limit changed.
WITH RECURSIVE b AS (
  (SELECT j.group_name FROM {s}.qsidecar_jobs j WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.queue = :queue
   ORDER BY j.queue, j.group_name LIMIT 1)
  UNION ALL
  SELECT r.group_name FROM b CROSS JOIN LATERAL (
    SELECT j.group_name FROM {s}.qsidecar_jobs j WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.queue = :queue AND j.group_name > b.group_name
    ORDER BY j.queue, j.group_name LIMIT 1) AS r
), a AS (
  (SELECT j.admitted_group FROM {s}.qsidecar_jobs j WHERE j.admitted_group IS NOT NULL AND j.queue = :queue ORDER BY j.queue, j.admitted_group LIMIT 1)
  UNION ALL
  SELECT r.admitted_group FROM a CROSS JOIN LATERAL (
    SELECT j.admitted_group FROM {s}.qsidecar_jobs j WHERE j.admitted_group IS NOT NULL AND j.queue = :queue AND j.admitted_group > a.admitted_group
    ORDER BY j.queue, j.admitted_group LIMIT 1) AS r
)
INSERT INTO {s}.qsidecar_admissions (queue, group_name)
SELECT :queue, name FROM (SELECT group_name AS name FROM b UNION SELECT admitted_group FROM a) AS c
