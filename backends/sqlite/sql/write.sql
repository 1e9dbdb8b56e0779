-- Statements that store jobs, settle them, and change claimed ones.

-- name: insert
INSERT INTO qsidecar_jobs (id, queue, state, priority, position, max_attempts, timeout_ms, run_at,
  enqueued_at, ready_at, key, group_name, group_noticed, start_before, on_expiry, retention_dead_ms, retain_ms, key_state, headers, payload)
VALUES (:id, :queue, :state, :priority, :position, :max_attempts, :timeout_ms, :run_at, :enqueued_at, :ready_at, :key, :group_name, :group_noticed,
  :start_before, :on_expiry, :retention_dead_ms, :retain_ms, :key_state, :headers, :payload)

-- name: find_key
SELECT job, expires_at, state FROM qsidecar_keys WHERE queue = :queue AND key = :key

-- name: put_key
INSERT INTO qsidecar_keys (queue, key, job, expires_at)
VALUES (:queue, :key, :job, :expires_at)
ON CONFLICT (queue, key) DO UPDATE
SET job = excluded.job, expires_at = excluded.expires_at, state = NULL

-- name: end_key
UPDATE qsidecar_keys SET state = :state WHERE queue = :queue AND key = :key AND job = :job

-- name: state_of
SELECT {shown_state}, key_state = 'start' AND claim_max IS NOT NULL FROM qsidecar_jobs WHERE id = :id

-- name: ack_plain
DELETE FROM qsidecar_jobs
WHERE id = :id AND state = 'claimed' AND token_sidecar = :token_sidecar AND token_number = :token_number
  AND retention_done_ms IS NULL AND key IS NULL AND admitted_group IS NULL AND batch IS NULL

-- name: claimed
SELECT queue, key, position, ready_at, attempts, claim_max, losses, backoff_ms,
  backoff_max_ms, retention_done_ms, retention_dead_ms, lease_ms, deadline, due_at, last_error, owner,
  prefetched, prefetch_losses, token_sidecar, token_number, worker, claimed_at, admitted_group, batch, key_state = 'pending'
FROM qsidecar_jobs
WHERE id = :id AND state = 'claimed'

-- name: leave
UPDATE qsidecar_jobs
SET state = :state, position = :position, ready_at = :ready_at, run_at = coalesce(:run_at, run_at), attempts = :attempts,
  losses = :losses, prefetched = 0, prefetch_losses = :prefetch_losses, last_error = :last_error, finished_at = :finished_at,
  prune_at = :prune_at, result = :result, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL,
  deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL
WHERE id = :id

-- name: remove
DELETE FROM qsidecar_jobs WHERE id = :id

-- name: fail
INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT id, fence, :attempt, :cause, :message, :at FROM qsidecar_jobs WHERE id = :job

-- name: renew
UPDATE qsidecar_jobs SET lease_ms = :lease_ms, due_at = :due_at WHERE id = :id

-- name: bind
UPDATE qsidecar_jobs SET lease_ms = NULL, due_at = deadline, owner = :owner, worker = :worker WHERE id = :id

-- name: disown
UPDATE qsidecar_jobs SET owner = 0 WHERE id = :id

-- name: deliver
UPDATE qsidecar_jobs
SET attempts = attempts + prefetched, prefetched = 0, prefetch_losses = 0,
  deadline = CASE WHEN due_at IS NULL THEN :now + max(deadline - claimed_at - :ago_ms, 0) ELSE deadline END,
  due_at = coalesce(due_at, :now + max(deadline - claimed_at - :ago_ms, 0)), worker = coalesce(worker, :worker)
WHERE id = :id AND state = 'claimed' AND token_sidecar = :token_sidecar AND token_number = :token_number

-- name: set_worker
UPDATE qsidecar_jobs SET worker = :worker WHERE id = :id

-- name: record
UPDATE qsidecar_jobs SET attempts = attempts + prefetched, prefetched = 0, prefetch_losses = 0, deadline = :deadline, due_at = :due_at WHERE id = :id
