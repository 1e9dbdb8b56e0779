-- Statistics and lists of jobs. A condition repeats the text of the partial index of a state: with a parameter instead,
-- the server would not use the index.

-- name: count_ready
{count_ready}

-- name: count_blocked
{count_blocked}

-- name: count_scheduled
{count_scheduled}

-- name: count_claimed
{count_claimed}

-- name: count_done
{count_done}

-- name: count_dead
{count_dead}

-- fragment: count_ready
-- with where: state = 'ready' AND group_name IS NULL
{counting}

-- fragment: count_blocked
-- with where: state = 'ready' AND group_name IS NOT NULL
{counting}

-- fragment: count_scheduled
-- with where: state = 'scheduled'
{counting}

-- fragment: count_claimed
-- with where: state = 'claimed'
{counting}

-- fragment: count_done
-- with where: finished_at IS NOT NULL AND state = 'done'
{counting}

-- fragment: count_dead
-- with where: finished_at IS NOT NULL AND state = 'dead'
{counting}

-- fragment: counting
-- Counts a queue's jobs in a state.
SELECT count(*) FROM (SELECT FROM {s}.qsidecar_jobs WHERE {where} AND queue = :queue LIMIT :limit) AS c

-- name: stats
-- with queue: :queue
-- Counts one queue.
SELECT {s}.qsidecar_now(),
  ({count_ready}),
  ({count_blocked}),
  ({count_scheduled}),
  ({count_claimed}),
  ({count_done}),
  ({count_dead}),
  EXISTS (SELECT FROM {s}.qsidecar_queues WHERE queue = :queue AND paused),
  (SELECT min(claimed_at) FROM {s}.qsidecar_jobs WHERE state = 'claimed' AND queue = :queue),
  ({oldest})

-- fragment: oldest
-- The first row of each priority: inside one, positions are given in the order in which rows
-- become ready. {queue} names the queue.
WITH RECURSIVE p AS (
  (SELECT -priority::int AS urgency, ready_at FROM {s}.qsidecar_jobs WHERE state = 'ready' AND group_name IS NULL AND queue = {queue} ORDER BY -priority::int, position LIMIT 1)
  UNION ALL
  SELECT n.urgency, n.ready_at FROM p CROSS JOIN LATERAL (
    SELECT -j.priority::int AS urgency, j.ready_at FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.group_name IS NULL AND j.queue = {queue} AND -j.priority::int > p.urgency ORDER BY -j.priority::int, j.position LIMIT 1) AS n
)
SELECT min(ready_at) FROM p

-- name: oldest_of
-- with queue: x.queue
-- The same for many queues.
SELECT x.queue, {s}.qsidecar_now(), ({oldest})
FROM unnest(:queues::text[]) AS x (queue)

-- name: queues_ready
-- with state: ready
-- with where: state = 'ready' AND group_name IS NULL
{counting_queues}

-- name: queues_blocked
-- with state: blocked
-- with where: state = 'ready' AND group_name IS NOT NULL
{counting_queues}

-- name: queues_scheduled
-- with state: scheduled
-- with where: state = 'scheduled'
{counting_queues}

-- fragment: counting_queues
-- Counts the rows of all queues that are behind one, at most :limit of them.
SELECT queue::text, '{state}', count(*)
FROM (SELECT queue FROM {s}.qsidecar_jobs WHERE {where} AND queue > :after ORDER BY queue LIMIT :limit) AS p
GROUP BY queue ORDER BY queue

-- name: queues_finished
SELECT queue::text, state::text, count(*)
FROM (
  SELECT queue, state FROM {s}.qsidecar_jobs WHERE finished_at IS NOT NULL AND (queue, state) > (:after, :after_state) ORDER BY queue, state LIMIT :limit
) AS p
GROUP BY queue, state ORDER BY queue, state

-- name: queues_claimed
SELECT {s}.qsidecar_now(), queue::text, count(*), min(claimed_at) FROM {s}.qsidecar_jobs WHERE state = 'claimed' GROUP BY queue

-- name: queues_paused
SELECT queue FROM {s}.qsidecar_queues WHERE paused

-- name: place
-- Where a list that follows a job goes on.
SELECT -priority::int, position, run_at, claimed_at, finished_at, coalesce(group_name, admitted_group, '') FROM {s}.qsidecar_jobs WHERE id = :id AND queue = :queue

-- fragment: size
octet_length(payload) + CASE WHEN pg_column_size(headers) > 65536 THEN octet_length(headers::text) ELSE 0 END

-- name: peek_ready
SELECT id, {size} FROM {s}.qsidecar_jobs
WHERE state = 'ready' AND group_name IS NULL AND queue = :queue AND (-priority::int, position) > (:after_urgency::int, :after_position::bigint)
ORDER BY -priority::int, position LIMIT :limit

-- name: peek_blocked
SELECT id, {size} FROM {s}.qsidecar_jobs
WHERE state = 'ready' AND group_name IS NOT NULL AND queue = :queue
  AND (group_name, -priority::int, position) > (:after_group::text, :after_urgency::int, :after_position::bigint)
ORDER BY group_name, -priority::int, position LIMIT :limit

-- name: peek_scheduled
SELECT id, {size} FROM {s}.qsidecar_jobs
WHERE state = 'scheduled' AND queue = :queue AND (run_at, id) > (:after_at::timestamptz, :after_id::bigint)
ORDER BY run_at, id LIMIT :limit

-- name: peek_claimed
SELECT id, {size} FROM {s}.qsidecar_jobs
WHERE state = 'claimed' AND queue = :queue AND (claimed_at, id) > (:after_at::timestamptz, :after_id::bigint)
ORDER BY claimed_at, id LIMIT :limit

-- name: peek_done
SELECT id, {size} + coalesce(octet_length(result), 0) FROM {s}.qsidecar_jobs
WHERE finished_at IS NOT NULL AND queue = :queue AND state = :state AND (finished_at, id) > (:after_at::timestamptz, :after_id::bigint)
ORDER BY finished_at, id LIMIT :limit

-- name: peek_newest
SELECT id, {size} + coalesce(octet_length(result), 0) FROM {s}.qsidecar_jobs
WHERE finished_at IS NOT NULL AND queue = :queue AND state = :state AND (finished_at, id) < (:before_at::timestamptz, :before_id::bigint)
ORDER BY finished_at DESC, id DESC LIMIT :limit

-- name: chosen
-- The sizes of named jobs.
SELECT j.id, j.size
FROM unnest(:ids::bigint[]) WITH ORDINALITY AS x (id, n)
CROSS JOIN LATERAL (
  SELECT j.id, {size_j} + coalesce(octet_length(j.result), 0) AS size
  FROM {s}.qsidecar_jobs j WHERE j.id = x.id AND j.queue = :queue LIMIT 1
) AS j
ORDER BY x.n

-- name: key_holder
SELECT job FROM {s}.qsidecar_keys WHERE queue = :queue AND key = :key

-- fragment: shown_state
CASE WHEN j.state = 'ready' AND j.group_name IS NOT NULL THEN 'blocked' ELSE j.state END

-- name: view
SELECT j.id, j.queue, {shown_state}, j.payload, j.priority, j.attempts, coalesce(j.claim_max, j.max_attempts, 0), j.enqueued_at,
  j.run_at, j.claimed_at, j.finished_at, coalesce(j.worker, ''), coalesce(j.key, ''), coalesce(j.headers::text, ''), j.result, coalesce(j.group_name, j.admitted_group, ''), coalesce(j.progress, 0), j.start_before
FROM unnest(:ids::bigint[]) WITH ORDINALITY AS x (id, n)
CROSS JOIN LATERAL (SELECT * FROM {s}.qsidecar_jobs j WHERE j.id = x.id AND j.queue = :queue LIMIT 1) AS j
ORDER BY x.n

-- name: failures
SELECT job, attempt, cause, message, at FROM {s}.qsidecar_failures WHERE job = ANY(:ids::bigint[]) ORDER BY job, fence

-- name: claimed_by
SELECT id, token_sidecar, token_number, queue, lease_ms IS NOT NULL
FROM {s}.qsidecar_jobs
WHERE state = 'claimed' AND owner = :owner AND id > :after
ORDER BY id LIMIT :limit
