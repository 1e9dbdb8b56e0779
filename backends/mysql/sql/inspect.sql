-- Statistics and lists of jobs. Claimed jobs are in one `segment` for each sidecar.

-- name: queues_paused
SELECT queue FROM qsidecar_queues WHERE paused

-- name: queues_claimed
SELECT queue, COUNT(*), MIN(claimed_at), {now} FROM {jobs} WHERE segment > 'c' AND segment < 'd' GROUP BY queue

-- name: count_claimed
SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment > 'c' AND segment < 'd' AND queue = :queue LIMIT :limit) AS x

-- name: count_segment
SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment = :segment LIMIT :limit) AS x

-- name: count_blocked
SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE :blocked LIMIT :limit) AS x

-- name: oldest_ready
-- The first row of the next priority. Within a priority, positions are given in the order in which rows become ready.
SELECT urgency, ready_at, {now} FROM {jobs} WHERE segment = :segment AND urgency > :after ORDER BY urgency, sort_key, id LIMIT 1

-- name: peek_claimed
SELECT {size} FROM {jobs}
WHERE segment > 'c' AND segment < 'd' AND queue = :queue AND (claimed_at > :after_at OR claimed_at = :after_at AND id > :after_id)
ORDER BY claimed_at, id LIMIT :limit

-- name: key_holder
SELECT job FROM qsidecar_keys WHERE queue = :queue AND `key` = :key

-- name: claimed_by
SELECT id, token_sidecar, token_number, queue, lease_ms IS NOT NULL FROM {jobs}
WHERE segment = :segment AND id > :after ORDER BY id LIMIT :limit

-- fragment: segments
-- How many rows there are of each `segment` and urgency between two values, up to a limit.
(SELECT p.segment, p.urgency, COUNT(*) AS n FROM (SELECT segment, urgency FROM {jobs}
    WHERE segment > :after AND segment < :before ORDER BY segment, urgency LIMIT :limit) AS p GROUP BY p.segment, p.urgency) AS g
ORDER BY g.segment, g.urgency

-- name: queues_ready
-- Within a group, positions are given in the order in which rows become ready.
SELECT g.segment, g.n, (SELECT j.ready_at FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_segments)
    WHERE j.segment = g.segment AND j.urgency = g.urgency ORDER BY j.sort_key, j.id LIMIT 1), {now} FROM {segments}

-- name: queues_others
-- The other states than ready and claimed.
SELECT g.segment, g.n, NULL, {now} FROM {segments}

-- name: queues_blocked
-- A `segment` has the queue before the group.
SELECT g.queue, COUNT(*) FROM (SELECT SUBSTRING_INDEX(SUBSTRING(segment, 2), '!', 1) AS queue FROM {jobs}
    WHERE segment > :after AND segment < :before ORDER BY segment LIMIT :limit) AS g
GROUP BY g.queue ORDER BY g.queue

-- name: stats
SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment = :ready LIMIT :limit) AS x),
  (SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment = :scheduled LIMIT :limit) AS x),
  (SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment > 'c' AND segment < 'd' AND queue = :queue LIMIT :limit) AS x),
  (SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment = :done LIMIT :limit) AS x),
  (SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment = :dead LIMIT :limit) AS x),
  EXISTS (SELECT 1 FROM qsidecar_queues WHERE queue = :queue AND paused),
  (SELECT MIN(claimed_at) FROM {jobs} WHERE segment > 'c' AND segment < 'd' AND queue = :queue), {now},
  (SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE :blocked LIMIT :limit) AS x)

-- fragment: place
-- Where a job is in a list: urgency and `sort_key`, and when it was claimed. It can be in another state by now.
SELECT {at}, claimed_at FROM qsidecar_jobs WHERE id = :id AND queue = :queue

-- name: place_ready
-- with at: -priority, position
{place}

-- name: place_scheduled
-- with at: 0, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', run_at)
{place}

-- name: place_claimed
-- with at: 0, 0
{place}

-- name: place_finished
-- with at: 0, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', finished_at)
{place}

-- name: place_blocked
SELECT -priority, position, COALESCE(group_name, admitted_group) FROM qsidecar_jobs WHERE id = :id AND queue = :queue

-- fragment: size
id, {bytes} + COALESCE(LENGTH(result), 0)

-- name: peek
-- :following is the condition that a row comes after a position (listPlace.following).
SELECT {size} FROM {jobs} WHERE segment = :segment AND :following ORDER BY urgency, sort_key, id LIMIT :limit

-- name: peek_newest
-- :preceding is the condition that a row comes before a position.
SELECT {size} FROM {jobs} WHERE segment = :segment AND :preceding ORDER BY urgency DESC, sort_key DESC, id DESC LIMIT :limit

-- name: blocked
-- Blocked jobs of a queue, by group, in the order in which each admits them. :unnoticed and :noticed are the parts of the index
-- after a position (table.BlockedAfter).
(SELECT {size}, SUBSTRING(segment, 2) AS place, urgency, sort_key FROM {jobs}
  WHERE :unnoticed ORDER BY segment, urgency, sort_key, id LIMIT :limit)
UNION ALL
(SELECT {size}, SUBSTRING(segment, 2), urgency, sort_key FROM {jobs}
  WHERE :noticed ORDER BY segment, urgency, sort_key, id LIMIT :limit)
ORDER BY place, urgency, sort_key, id LIMIT :limit

-- name: chosen
SELECT {size} FROM qsidecar_jobs WHERE id IN (:ids) AND queue = :queue

-- name: view
SELECT j.id, j.queue, {shown_state}, j.payload, j.priority, j.attempts, COALESCE(j.claim_max, j.max_attempts, 0), j.enqueued_at, j.run_at, j.claimed_at, j.finished_at,
  j.worker, j.`key`, j.headers, j.result, COALESCE(j.group_name, j.admitted_group), j.progress, j.start_before
FROM qsidecar_jobs j WHERE j.id IN (:ids) AND j.queue = :queue

-- name: failures
SELECT job, attempt, cause, message, at FROM qsidecar_failures WHERE job IN (:ids) ORDER BY job, fence
