-- Statements that claim jobs. They name their indexes, so that no statistics and no version of SQLite can turn a
-- claim into a scan of the whole table. So do the statements of the other files.

-- fragment: bytes
-- The bytes of a row that count against the limits: those of its payload, and those of headers that are larger than any
-- that a sidecar stores.
(octet_length(payload) + CASE WHEN octet_length(headers) > 65536 THEN octet_length(headers) ELSE 0 END)

-- fragment: ready_columns
id, {bytes}, CASE WHEN {bytes} <= :max_payload THEN CAST(payload AS BLOB) END, priority, attempts, fence,
  max_attempts, timeout_ms, headers, key, last_error, enqueued_at, prefetch_losses, losses, admitted_group, progress, start_before, on_expiry = 'delete', retain_ms

-- name: closed
-- Whether the queue is paused, whether it has limits, and whether it has one of ready jobs.
SELECT paused, max_claimed IS NOT NULL OR rate IS NOT NULL, group_ready IS NOT NULL FROM qsidecar_queues WHERE queue = :queue

-- name: paused
SELECT 1 FROM qsidecar_queues WHERE queue = :queue AND paused

-- name: next_priority
SELECT priority
FROM qsidecar_jobs INDEXED BY qsidecar_ready
WHERE state = 'ready' AND group_name IS NULL AND queue = :queue AND priority < :below
ORDER BY priority DESC LIMIT 1

-- name: ready_fifo
SELECT {ready_columns}
FROM qsidecar_jobs INDEXED BY qsidecar_ready
WHERE state = 'ready' AND group_name IS NULL AND queue = :queue
ORDER BY priority DESC, position LIMIT :limit

-- name: ready_lifo
SELECT {ready_columns}
FROM qsidecar_jobs INDEXED BY qsidecar_ready
WHERE state = 'ready' AND group_name IS NULL AND queue = :queue AND priority = :priority
ORDER BY position DESC LIMIT :limit

-- fragment: shown_state
CASE WHEN state = 'ready' AND group_name IS NOT NULL THEN 'blocked' ELSE state END

-- name: take
UPDATE qsidecar_jobs
SET state = 'claimed', attempts = :attempts, prefetched = :prefetched, fence = :fence, claim_max = :claim_max, backoff_ms = :backoff_ms,
  backoff_max_ms = :backoff_max_ms, retention_done_ms = :retention_done_ms, retention_dead_ms = :retention_dead_ms,
  token_sidecar = :token_sidecar, token_number = :token_number, owner = :owner, lease_ms = :lease_ms, deadline = :deadline,
  due_at = :due_at, claimed_at = :claimed_at, worker = :worker
WHERE id = :id

-- name: bury
UPDATE qsidecar_jobs
SET state = 'dead', attempts = :attempts, fence = :fence, claim_max = :claim_max, retention_dead_ms = :retention_dead_ms, finished_at = :finished_at,
  prune_at = :prune_at, last_error = :last_error, group_name = admitted_group, admitted_group = NULL
WHERE id = :id

-- name: expiring
SELECT queue, attempts, fence, retention_dead_ms, key, coalesce(group_name, admitted_group) FROM qsidecar_jobs WHERE id = :id

-- name: expire
UPDATE qsidecar_jobs
SET state = 'dead', fence = :fence, run_at = NULL, retention_dead_ms = :retention_dead_ms, finished_at = :finished_at, prune_at = :prune_at,
  last_error = :last_error, group_name = coalesce(group_name, admitted_group), admitted_group = NULL
WHERE id = :id
