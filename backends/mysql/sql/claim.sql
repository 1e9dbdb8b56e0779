-- Statements that claim jobs. :where is the part of the index that a statement scans (claim.where, and {uncovered} aside), and
-- which rows it leaves out. :limit stops the scan, and with it the locking, at the last row that the claim can use.

-- fragment: ready_row
-- A larger payload than :small is read later, if the job is claimed.
id, priority, position, {bytes}, IF(LENGTH(payload) <= :small, payload, NULL), attempts, prefetch_losses, fence,
  max_attempts, timeout_ms, enqueued_at, headers, `key`, last_error, losses, admitted_group, progress, start_before, on_expiry = 'delete', retain_ms

-- fragment: oldest
FROM {jobs} WHERE {in_segment} AND :where ORDER BY {in_order} LIMIT :limit

-- fragment: newest
-- The rows of one urgency.
FROM {jobs} WHERE segment = :segment AND :where ORDER BY sort_key DESC, id DESC LIMIT :limit

-- name: claim
SELECT {no_pushdown} {ready_row} {oldest} FOR UPDATE SKIP LOCKED

-- name: claim_unlocked
SELECT {no_pushdown} id {oldest}

-- name: claim_lifo
SELECT {no_pushdown} {ready_row} {newest} FOR UPDATE SKIP LOCKED

-- name: claim_lifo_unlocked
SELECT {no_pushdown} id {newest}

-- name: next_urgency
-- The newest jobs are claimed from urgency to urgency, because the server can't read one index in both directions at once.
SET @qsidecar_urgency = (SELECT MIN(urgency) FROM {jobs} WHERE segment = :segment AND urgency > :below)

-- name: urgency
SELECT @qsidecar_urgency

-- name: lock_ready
-- Locks rows that a statement without locks found.
SELECT {ready_row} FROM {by_id} WHERE id IN (:ids) AND state = 'ready' AND run_at IS NULL AND group_name IS NULL ORDER BY id FOR UPDATE {skip_locked}

-- name: lock_queue
-- Without SKIP LOCKED, one transaction at a time claims from a queue.
INSERT INTO qsidecar_queues (queue) VALUES (:queue) ON DUPLICATE KEY UPDATE requeues = requeues

-- name: claim_status
-- The time, the next position, whether the sidecar is alive, and the state of the queues.
SELECT {now}, {position}, h.sidecar, q.queue, q.requeues, q.paused, q.max_claimed IS NOT NULL OR q.rate IS NOT NULL, q.group_ready IS NOT NULL FROM (SELECT 1) AS one
LEFT JOIN qsidecar_sidecars AS h ON h.sidecar = :sidecar AND NOT h.dead AND NOT h.has_left
LEFT JOIN qsidecar_queues AS q ON q.queue IN (:queues)

-- name: take
-- The rows differ only in their tokens and workers. Only an INSERT by hand can store a fence so large that no higher one
-- fits. The next one after it is the time (nextFence).
UPDATE {by_id} SET state = 'claimed', owner = :owner, claimed_at = :now, fence = GREATEST(IF(fence < 4611686018427387903, fence + 1, 0), :now_us),
  attempts = LEAST(attempts, 32767) + :counted, prefetched = :uncounted, claim_max = :claim_max, backoff_ms = :backoff, backoff_max_ms = :backoff_max,
  retention_done_ms = :retention_done, retention_dead_ms = :retention_dead, lease_ms = :lease, deadline = :deadline, due_at = :due_at,
  token_sidecar = :token_sidecar, token_number = :numbers, worker = :workers
WHERE id IN (:ids)

-- name: payloads
SELECT id, payload FROM qsidecar_jobs WHERE id IN (:ids)

-- name: bury
-- Makes a locked ready job dead whose payload cannot be delivered.
UPDATE qsidecar_jobs SET state = 'dead', attempts = :attempts, fence = :fence, claim_max = :claim_max, retention_dead_ms = :retention_dead,
  finished_at = :now, prune_at = :prune_at, last_error = :message, group_name = COALESCE(group_name, admitted_group), admitted_group = NULL
WHERE id = :id

-- name: expire
-- Makes a locked ready job dead whose time to start is over.
UPDATE qsidecar_jobs SET state = 'dead', fence = :fence, retention_dead_ms = :retention_dead, finished_at = :now, prune_at = :prune_at,
  last_error = :message, group_name = COALESCE(group_name, admitted_group), admitted_group = NULL
WHERE id = :id

-- name: probe
-- The first ready row of a piece of the index. It fails if another transaction can still roll back a change of the piece.
SELECT {no_pushdown} sort_key FROM {jobs} WHERE {in_segment} AND :where ORDER BY {in_order} LIMIT 1 FOR UPDATE NOWAIT

-- name: position
SELECT {position}
