-- Statements of groups. backends/internal/core/groups.go describes them. One transaction at a time writes, so no row is locked,
-- and groups need no stripes.

-- name: note_group
INSERT INTO qsidecar_admissions (queue, group_name) VALUES (:queue, :group) ON CONFLICT (queue, group_name) DO NOTHING

-- name: leave_group
-- Takes the slot from a job that ended, or that gives it up during its back-off.
UPDATE qsidecar_jobs SET group_name = admitted_group, admitted_group = NULL
WHERE id = :id AND admitted_group IS NOT NULL AND (state IN ('done', 'dead')
  OR state = 'scheduled' AND (SELECT q.group_skips FROM qsidecar_queues AS q WHERE q.queue = qsidecar_jobs.queue))

-- name: take_note
DELETE FROM qsidecar_admissions WHERE queue = :queue AND group_name = :group

-- name: take_arrived
-- Marks blocked jobs of a group as noticed.
UPDATE qsidecar_jobs SET group_noticed = 1 WHERE id IN (
  SELECT id FROM qsidecar_jobs INDEXED BY qsidecar_arrived
  WHERE state = 'ready' AND group_name IS NOT NULL AND group_noticed IS NULL AND queue = :queue AND group_name = :group LIMIT :limit)

-- name: slots
-- How many slots a group has, and how many of them are taken.
SELECT coalesce((SELECT group_limit FROM qsidecar_queues WHERE queue = :queue), 1),
  (SELECT count(*) FROM qsidecar_jobs INDEXED BY qsidecar_admitted WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group)

-- name: admitted
-- The jobs of a group that have slots and that no worker has.
SELECT id, priority, position
FROM qsidecar_jobs INDEXED BY qsidecar_admitted
WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group AND state = 'ready' LIMIT :limit

-- name: blocked
-- The first blocked jobs of a group.
SELECT id, priority, position
FROM qsidecar_jobs INDEXED BY qsidecar_blocked
WHERE state = 'ready' AND group_name IS NOT NULL AND queue = :queue AND group_name = :group
ORDER BY priority DESC, position LIMIT :limit

-- name: admit
UPDATE qsidecar_jobs SET admitted_group = group_name, group_name = NULL, group_noticed = NULL WHERE id = :id

-- name: block
UPDATE qsidecar_jobs SET group_name = admitted_group, admitted_group = NULL, group_noticed = 1 WHERE id = :id

-- name: group_slots
SELECT id, state
FROM qsidecar_jobs INDEXED BY qsidecar_admitted
WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group ORDER BY state LIMIT :limit

-- name: noted
SELECT queue, group_name FROM qsidecar_admissions WHERE queue > '' ORDER BY queue, group_name LIMIT :limit

-- name: arrived
SELECT queue, group_name
FROM qsidecar_jobs INDEXED BY qsidecar_arrived
WHERE state = 'ready' AND group_name IS NOT NULL AND group_noticed IS NULL AND queue > ''
ORDER BY queue, group_name LIMIT :limit

-- name: next_blocked
-- The next group with blocked jobs.
SELECT queue, group_name
FROM qsidecar_jobs INDEXED BY qsidecar_blocked
WHERE state = 'ready' AND group_name IS NOT NULL AND (queue, group_name) > (:queue, :group)
ORDER BY queue, group_name LIMIT 1

-- name: next_admitted
-- The next group with jobs that have slots.
SELECT queue, admitted_group
FROM qsidecar_jobs INDEXED BY qsidecar_admitted
WHERE admitted_group IS NOT NULL AND (queue, admitted_group) > (:queue, :group)
ORDER BY queue, admitted_group LIMIT 1
