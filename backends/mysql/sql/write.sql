-- Statements that store jobs, settle them, and change claimed ones.
--
-- MySQL has no arrays. So the value of a parameter can be a list of ids, several rows, or an expression that returns
-- each row's value (table.Among, tx.byRow). The program writes it into the text.

-- name: insert
-- The rows follow, each with its end. {step} is how far the ids of one statement are apart. A Galera node changes it when another node
-- joins or leaves, also between two statements. So there {max_attempts} stores it while the rows are inserted.
INSERT INTO qsidecar_jobs (queue, state, priority, max_attempts, timeout_ms, run_at, enqueued_at, ready_at, `key`, headers, payload) VALUES

-- name: insert_row
(:queue, :state, :priority, {max_attempts}, :timeout_ms, :run_at, :now, :now, :key, :headers, :payload

-- name: insert_delayed_row
(:queue, :state, :priority, {max_attempts}, :timeout_ms, :now + INTERVAL :delay_us MICROSECOND, :now, :now, :key, :headers, :payload

-- name: insert_more
-- The same with groups, expiries and retentions of jobs, which can be NULL. The transaction notes the groups of those that are blocked.
INSERT INTO qsidecar_jobs (queue, state, priority, max_attempts, timeout_ms, run_at, enqueued_at, ready_at, `key`, headers, payload, group_name, group_noticed, start_before, on_expiry, retention_dead_ms, retain_ms, key_state) VALUES

-- name: end_row
)

-- name: end_more
, :group, 1, :start_before, :on_expiry, :retention_dead, :retain, :key_state)

-- name: insert_expiring
-- The statement before it inserted the jobs.
INSERT INTO qsidecar_expiring (start_before, job) VALUES :rows

-- name: expiring_row
(:start_before, LAST_INSERT_ID() + :index * {step})

-- name: expire_later
-- Waiting jobs that had no row. Further rows can follow.
INSERT IGNORE INTO qsidecar_expiring (start_before, job) VALUES (:start_before, :job)

-- name: inserted
SELECT LAST_INSERT_ID(), {step}

-- name: ack
-- Ends claims of jobs that are not kept, have neither a key nor a group, are in no batch, and never failed.
{delete_by_id} AND token_number = :numbers AND token_sidecar = :sidecars
  AND retention_done_ms IS NULL AND `key` IS NULL AND last_error IS NULL AND admitted_group IS NULL AND batch IS NULL

-- name: row_count
-- How many rows the last statement changed.
SELECT ROW_COUNT()

-- fragment: row
id, queue, `key`, state, priority, position, fence, attempts, losses, prefetch_losses, prefetched, max_attempts, claim_max,
  backoff_ms, backoff_max_ms, retention_done_ms, retention_dead_ms, token_sidecar, token_number, owner, lease_ms, deadline, due_at,
  last_error IS NOT NULL, worker IS NOT NULL, run_at, prune_at, claimed_at, group_name, admitted_group, batch, start_before, on_expiry = 'delete', key_state, enqueued_at

-- name: lock
SELECT {row} FROM {by_id} WHERE id IN (:ids) ORDER BY id FOR UPDATE

-- name: lock_free
-- Leaves out the rows that other transactions have locked, if the server can.
SELECT {row} FROM {by_id} WHERE id IN (:ids) ORDER BY id FOR UPDATE {skip_locked}

-- name: find_claimed
SELECT id FROM qsidecar_jobs WHERE id IN (:ids) AND state = 'claimed'

-- name: lock_one
SELECT id FROM {by_id} WHERE id = :id FOR UPDATE NOWAIT

-- name: delete_done
{delete_by_id}

-- fragment: end_claims_of_all
-- Writes how claims ended whose jobs stay. {also} is another column.
UPDATE {by_id} SET prefetched = 0, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL,
  claimed_at = NULL, worker = NULL, state = :state, attempts = :attempts, losses = :losses, prefetch_losses = :prefetch_losses, run_at = :run_at,
  last_error = IF(:failed, :message, last_error), finished_at = :finished_at, prune_at = :prune_at, result = :result {also}
WHERE id IN (:ids)

-- name: end_claims
-- with also:
{end_claims_of_all}

-- name: end_claims_requeued
-- with also: , position = {position}, ready_at = :now
-- The same for jobs that are ready at a new position, behind the others.
{end_claims_of_all}

-- name: renew_claims
-- Writes claims that continue.
UPDATE {by_id} SET attempts = :attempts, prefetch_losses = :prefetch_losses, prefetched = :prefetched, owner = :owner, lease_ms = :lease_ms,
  deadline = :deadline, due_at = :due_at, worker = IF(:set_worker, :worker, worker)
WHERE id IN (:ids)

-- name: insert_failures
-- Further rows can follow.
INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at) VALUES (:job, :fence, :attempt, :cause, :message, :now)

-- name: delete_failures
DELETE FROM f USING qsidecar_failures AS f FORCE INDEX (PRIMARY) WHERE job IN (:jobs) AND cause <> ''

-- name: insert_prunable
-- Further rows can follow.
INSERT INTO qsidecar_prunable (prune_at, job) VALUES (:prune_at, :job)

-- name: register
-- Adds a queue, so that maintenance scans it, and shows all sidecars that its row is in use.
INSERT INTO qsidecar_queues (queue) VALUES (:queue) ON DUPLICATE KEY UPDATE requeues = requeues + 1

-- name: count_return
-- Counts a job that is given back.
INSERT INTO qsidecar_queues (queue, requeues) VALUES (:queue, 1) ON DUPLICATE KEY UPDATE requeues = requeues + 1

-- name: read_requeues
SELECT queue, requeues FROM qsidecar_queues WHERE queue IN (:queues) FOR UPDATE
