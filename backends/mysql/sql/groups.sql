-- Statements of groups. backends/internal/core/groups.go describes them.

-- name: note_group
-- Further rows can follow.
INSERT INTO qsidecar_admissions (queue, group_name) VALUES (:queue, :group)

-- name: note_all
-- Notes all groups of a queue that have blocked or admitted jobs, after its limit changed. At :first the `segment` has the group.
INSERT INTO qsidecar_admissions (queue, group_name)
SELECT :queue, UNHEX(SUBSTRING(segment, :first)) FROM (SELECT DISTINCT segment FROM {jobs} WHERE :blocked) AS x
UNION
SELECT queue, group_name FROM qsidecar_admitted WHERE queue = :queue

-- name: leave_groups
-- Takes the slots from jobs that ended.
UPDATE {by_id} SET group_name = admitted_group, admitted_group = NULL WHERE id IN (:ids) AND admitted_group IS NOT NULL AND state IN ('done', 'dead')

-- name: skipped
-- Jobs that give up their slots during their back-off. It is not a part of the UPDATE, which would lock the queues.
SELECT j.id FROM qsidecar_jobs AS j WHERE j.id IN (:ids) AND j.state = 'scheduled' AND j.admitted_group IS NOT NULL
  AND (SELECT q.group_skips IS NOT NULL OR q.group_limit IS NULL AND q.group_ready IS NOT NULL FROM qsidecar_queues q WHERE q.queue = j.queue)

-- name: wait_again
-- Takes the slots from other jobs.
UPDATE {by_id} SET group_name = admitted_group, admitted_group = NULL, group_noticed = :noticed WHERE id IN (:ids)

-- name: lock_stripe
-- It always writes: clusters with several writing servers compare only writes.
INSERT INTO qsidecar_stripes (queue, stripe) VALUES (:queue, :stripe) ON DUPLICATE KEY UPDATE passes = passes + 1

-- name: free_stripes
-- Leaves out the stripes that other transactions have locked. Servers without SKIP LOCKED fail at once if one is locked.
SELECT queue, stripe FROM qsidecar_stripes FORCE INDEX (PRIMARY) WHERE :stripes FOR UPDATE {if_free}

-- name: one_stripe
(queue = :queue AND stripe = :stripe)

-- name: one_group
queue = :queue AND group_name = :group

-- name: notes_of
SELECT note FROM qsidecar_admissions FORCE INDEX (qsidecar_admissions_group) WHERE :groups LIMIT :limit

-- name: group_limits
SELECT queue, group_limit, group_ready FROM qsidecar_queues WHERE queue IN (:queues)

-- name: admitted_of
-- The jobs of groups that can have slots.
SELECT queue, group_name, job FROM qsidecar_admitted FORCE INDEX (PRIMARY) WHERE :groups

-- name: admitted_rows
-- Those of them that have slots.
SELECT id, queue, admitted_group, state, -priority, position FROM {by_id} WHERE id IN (:ids) AND admitted_group IS NOT NULL

-- name: group_slots
SELECT j.id, j.state FROM qsidecar_admitted AS a FORCE INDEX (PRIMARY) STRAIGHT_JOIN qsidecar_jobs AS j FORCE INDEX (PRIMARY) ON j.id = a.job
WHERE a.queue = :queue AND a.group_name = :group AND j.admitted_group IS NOT NULL LIMIT :limit

-- name: first_blocked
-- The first jobs of one `segment` of a group, as a part of a statement.
(SELECT {no_pushdown} :number, id, urgency, sort_key FROM {jobs} WHERE segment = :segment AND {uncovered} ORDER BY urgency, sort_key, id LIMIT :limit)

-- name: delete_notes
DELETE FROM a USING qsidecar_admissions AS a FORCE INDEX (PRIMARY) WHERE note IN (:notes) AND queue <> ''

-- name: leave_admitted
DELETE FROM a USING qsidecar_admitted AS a FORCE INDEX (PRIMARY) WHERE queue = :queue AND group_name = :group AND job IN (:jobs)

-- name: enter_admitted
-- Further rows can follow.
INSERT IGNORE INTO qsidecar_admitted (queue, group_name, job) VALUES (:queue, :group, :job)

-- name: notice
-- A fence above 0 frees rows from a CHECK that is younger than they are.
UPDATE {by_id} SET group_noticed = 1, fence = GREATEST(fence, 1) WHERE id IN (:ids)

-- name: admit
UPDATE {by_id} SET admitted_group = group_name, group_name = NULL, group_noticed = NULL, fence = GREATEST(fence, 1) WHERE id IN (:ids)

-- name: admit_last
-- Also gives the rows new positions, in the order of their ranks.
UPDATE {by_id} SET admitted_group = group_name, group_name = NULL, group_noticed = NULL, fence = GREATEST(fence, 1),
  position = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ranks
WHERE id IN (:ids)

-- name: find_notes
-- The groups of the first rows of qsidecar_admissions that come after a group, and how many of these rows each has.
SELECT x.queue, x.group_name, COUNT(*) FROM (
  SELECT queue, group_name FROM qsidecar_admissions FORCE INDEX (qsidecar_admissions_group) WHERE queue > :queue OR queue = :queue AND group_name > :group
  ORDER BY queue, group_name LIMIT :limit) AS x
GROUP BY x.queue, x.group_name ORDER BY x.queue, x.group_name

-- name: find_blocked
-- The values of `segment` of the first blocked jobs in a range, and how many of these jobs have each.
SELECT x.segment, COUNT(*) FROM (SELECT segment FROM {jobs} WHERE segment > :after AND segment < :before ORDER BY segment LIMIT :limit) AS x
GROUP BY x.segment ORDER BY x.segment

-- name: find_admitted
-- The groups of the first rows of qsidecar_admitted that come after a group, and how many of these rows each has.
SELECT x.queue, x.group_name, COUNT(*) FROM (
  SELECT queue, group_name FROM qsidecar_admitted FORCE INDEX (PRIMARY) WHERE queue > :queue OR queue = :queue AND group_name > :group
  ORDER BY queue, group_name LIMIT :limit) AS x
GROUP BY x.queue, x.group_name ORDER BY x.queue, x.group_name
