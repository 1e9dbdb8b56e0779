-- Statements of groups. backends/internal/core/groups.go describes them. One transaction at a time writes, so no row is locked,
-- and groups need no stripes.

-- name: note_group
INSERT INTO qsidecar_admissions (queue, group_name) VALUES (:queue, :group) ON CONFLICT (queue, group_name) DO NOTHING

-- name: leave_group
-- Takes the slot from a job that ended, or that gives it up during its back-off.
UPDATE qsidecar_jobs SET group_name = admitted_group, admitted_group = NULL
WHERE id = :id AND admitted_group IS NOT NULL AND (state IN ('done', 'dead')
  OR state = 'scheduled' AND (SELECT q.group_skips IS NOT NULL OR q.group_limit IS NULL AND q.group_ready IS NOT NULL FROM qsidecar_queues AS q WHERE q.queue = qsidecar_jobs.queue))

-- name: take_note
DELETE FROM qsidecar_admissions WHERE queue = :queue AND group_name = :group

-- name: take_arrived
-- Marks blocked jobs of a group as noticed.
UPDATE qsidecar_jobs SET group_noticed = 1 WHERE id IN (
  SELECT id FROM qsidecar_jobs INDEXED BY qsidecar_arrived
  WHERE state = 'ready' AND group_name IS NOT NULL AND group_noticed IS NULL AND queue = :queue AND group_name = :group LIMIT :limit)

-- name: slots
-- The limits of a group, and how many claimed, scheduled and ready jobs have a slot.
SELECT (SELECT group_limit FROM qsidecar_queues WHERE queue = :queue), (SELECT group_ready FROM qsidecar_queues WHERE queue = :queue),
  count(*) FILTER (WHERE state = 'claimed'), count(*) FILTER (WHERE state = 'scheduled'), count(*) FILTER (WHERE state = 'ready')
FROM qsidecar_jobs INDEXED BY qsidecar_admitted WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group

-- name: delayed
-- The jobs of a group in their back-off that have slots, behind the first :most.
SELECT id FROM qsidecar_jobs INDEXED BY qsidecar_admitted
WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group AND state = 'scheduled'
ORDER BY priority DESC, position LIMIT :limit OFFSET :most

-- name: admitted
-- The last jobs of a group that have slots and that no worker has.
SELECT id, priority, position
FROM qsidecar_jobs INDEXED BY qsidecar_admitted
WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group AND state = 'ready'
ORDER BY priority, position DESC LIMIT :limit

-- name: blocked
-- The first blocked jobs of a group.
SELECT id, priority, position
FROM qsidecar_jobs INDEXED BY qsidecar_blocked
WHERE state = 'ready' AND group_name IS NOT NULL AND queue = :queue AND group_name = :group
ORDER BY priority DESC, position LIMIT :limit

-- name: admit
UPDATE qsidecar_jobs SET admitted_group = group_name, group_name = NULL, group_noticed = NULL, position = coalesce(:position, position) WHERE id = :id

-- name: block
UPDATE qsidecar_jobs SET group_name = admitted_group, admitted_group = NULL, group_noticed = :noticed WHERE id = :id

-- name: group_slots
SELECT id, state
FROM qsidecar_jobs INDEXED BY qsidecar_admitted
WHERE admitted_group IS NOT NULL AND queue = :queue AND admitted_group = :group ORDER BY state LIMIT :limit

-- name: next_noted
-- The next group with a note.
SELECT queue, group_name FROM qsidecar_admissions WHERE (queue, group_name) > (:queue, :group) ORDER BY queue, group_name LIMIT 1

-- name: next_arrived
-- The next group with blocked jobs that no sidecar has noticed.
SELECT queue, group_name
FROM qsidecar_jobs INDEXED BY qsidecar_arrived
WHERE state = 'ready' AND group_name IS NOT NULL AND group_noticed IS NULL AND (queue, group_name) > (:queue, :group)
ORDER BY queue, group_name LIMIT 1

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
