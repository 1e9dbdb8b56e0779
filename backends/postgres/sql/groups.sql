-- Statements of groups. backends/internal/core/groups.go describes them.

-- name: note_groups
INSERT INTO {s}.qsidecar_admissions (queue, group_name) SELECT * FROM unnest(:queues::text[], :groups::text[])

-- name: leave_groups
-- Takes the slots from jobs that ended, or that give them up during their back-off.
UPDATE {s}.qsidecar_jobs j SET group_name = j.admitted_group, admitted_group = NULL
WHERE j.id = ANY(:ids::bigint[]) AND coalesce(j.admitted_group, '') <> ''
  AND (j.state IN ('done', 'dead') OR j.state = 'scheduled' AND (SELECT q.group_skips FROM {s}.qsidecar_queues q WHERE q.queue = j.queue))

-- name: lock_stripes
-- It always writes: clusters with several writing servers compare only writes. The stripes are in order.
INSERT INTO {s}.qsidecar_stripes AS l (queue, stripe) SELECT * FROM unnest(:queues::text[], :stripes::int[])
ON CONFLICT (queue, stripe) DO UPDATE SET passes = l.passes + 1

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
-- The groups, with how many slots each has and how many of them are taken.
SELECT x.n, x.queue, x.name, coalesce((SELECT q.group_limit FROM {s}.qsidecar_queues q WHERE q.queue = x.queue), 1) AS most,
    (SELECT count(*) FROM {s}.qsidecar_jobs a WHERE a.queue = x.queue AND a.admitted_group = x.name) AS taken
  FROM unnest(:queues::text[], :groups::text[]) WITH ORDINALITY AS x (queue, name, n)

-- name: block
-- Blocks admitted jobs again that no worker has: those beyond the limit, and those whose slots blocked jobs of a higher
-- priority need. Rows that a claim has locked stay as they are. The expressions keep the planner from other indexes than that of the ids.
WITH x AS MATERIALIZED (
  {slots}
), c AS MATERIALIZED (
  SELECT r.id, r.blocked, row_number() OVER (PARTITION BY x.n ORDER BY r.urgency, r.blocked, r.position, r.id) AS place,
    x.most - x.taken + count(*) FILTER (WHERE NOT r.blocked) OVER (PARTITION BY x.n) AS free
  FROM x CROSS JOIN LATERAL (
    (SELECT a.id, -a.priority::int AS urgency, false AS blocked, a.position FROM {s}.qsidecar_jobs a
    WHERE a.queue = x.queue AND a.admitted_group = x.name AND a.admitted_group IS NOT NULL AND a.state = 'ready'
    ORDER BY a.queue, a.admitted_group, a.state LIMIT :limit)
    UNION ALL
    (SELECT j.id, -j.priority::int, true, j.position FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.queue = x.queue AND j.group_name = x.name
    ORDER BY -j.priority::int, j.position LIMIT least(x.most, :limit))
  ) AS r
), l AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs
  WHERE id = ANY(ARRAY(SELECT id FROM c WHERE NOT blocked AND place > free)) AND coalesce(admitted_group, '') <> '' AND state || '' = 'ready' FOR UPDATE SKIP LOCKED
)
UPDATE {s}.qsidecar_jobs SET group_name = admitted_group, admitted_group = NULL, group_noticed = true WHERE id = ANY(ARRAY(SELECT id FROM l))

-- name: admit
-- Gives free slots to the first blocked jobs of each group, which keep their positions. If one of them is locked, its slot stays
-- free: the next job must not overtake it. Returns those that were admitted with the queue's count of requeues, and -1 for
-- each of the others, then one row for each group that has more blocked jobs and free slots than :limit.
WITH x AS MATERIALIZED (
  {slots}
), h AS MATERIALIZED (
  SELECT x.n, r.id FROM x CROSS JOIN LATERAL (
    SELECT j.id FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.queue = x.queue AND j.group_name = x.name
    ORDER BY -j.priority::int, j.position LIMIT greatest(least(x.most - x.taken, :limit), 0)
  ) AS r
), l AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs WHERE id = ANY(ARRAY(SELECT id FROM h)) AND coalesce(group_name, '') <> '' AND state || '' = 'ready' FOR UPDATE SKIP LOCKED
), u AS (
  UPDATE {s}.qsidecar_jobs j SET admitted_group = j.group_name, group_name = NULL, group_noticed = NULL, fence = greatest(j.fence, 1)
  WHERE j.id = ANY(ARRAY(SELECT id FROM l))
  RETURNING j.id, j.queue, -j.priority::int AS urgency, j.position
), q AS (
  INSERT INTO {s}.qsidecar_queues AS q (queue, requeues) SELECT DISTINCT queue, 1 FROM u ORDER BY queue
  ON CONFLICT (queue) DO UPDATE SET requeues = q.requeues + 1
  RETURNING queue, requeues
)
SELECT 0, u.queue::text, u.urgency, u.position, (SELECT q.requeues FROM q WHERE q.queue = u.queue) FROM u
UNION ALL
SELECT h.n, '', 0, 0, -1 FROM h WHERE h.id <> ALL(ARRAY(SELECT id FROM u))
UNION ALL
SELECT x.n, '', 0, 0, -1 FROM x WHERE x.most - x.taken > :limit AND (SELECT count(*) FROM h WHERE h.n = x.n) = :limit

-- name: group_slots
SELECT id, state FROM {s}.qsidecar_jobs
WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group ORDER BY queue, admitted_group, state LIMIT :limit

-- name: find_groups
-- Groups that possibly have something to admit: noted ones, those with jobs that no sidecar has noticed, and those of a part of the
-- walk over all groups with blocked jobs. The last row is where the walk goes on.
WITH RECURSIVE walk AS (
  (SELECT j.queue::text AS queue, j.group_name, 1 AS n FROM {s}.qsidecar_jobs j
   WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND (j.queue, j.group_name) > (:after_queue::text, :after_group::text)
   ORDER BY j.queue, j.group_name, -j.priority::int, j.position LIMIT 1)
  UNION ALL
  SELECT r.queue, r.group_name, w.n + 1 FROM walk w CROSS JOIN LATERAL (
    SELECT j.queue::text AS queue, j.group_name FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND (j.queue, j.group_name) > (w.queue, w.group_name)
    ORDER BY j.queue, j.group_name, -j.priority::int, j.position LIMIT 1) AS r
  WHERE w.n < :walk::int
)
SELECT queue, group_name, false FROM (SELECT DISTINCT queue, group_name FROM (
  (SELECT queue, group_name FROM {s}.qsidecar_admissions ORDER BY queue, group_name, note LIMIT :limit)
  UNION ALL
  (SELECT j.queue::text, j.group_name FROM {s}.qsidecar_jobs j WHERE j.state = 'ready' AND j.group_name IS NOT NULL AND j.group_noticed IS NULL
   ORDER BY j.queue, j.group_name LIMIT :limit)
) AS a) AS b
UNION ALL
SELECT w.queue, w.group_name, true FROM walk w

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
