-- The rows of idempotency keys. :keys is a condition that joins that of each key by OR. :rows are rows with commas between them.

-- name: one_key
queue = :queue AND `key` = :key

-- name: one_key_of_job
queue = :queue AND `key` = :key AND job = :job

-- name: insert_missing_keys
-- Creates the rows that do not exist. Their job is 0.
INSERT INTO qsidecar_keys (queue, `key`, job, expires_at) VALUES :rows ON DUPLICATE KEY UPDATE job = job

-- name: missing_key
(:queue, :key, 0, {now})

-- name: lock_keys
SELECT queue, `key`, job, state, expires_at FROM {keys} WHERE :keys FOR UPDATE

-- name: states_of_keys
-- A job that has not ended is in some state, or was deleted by hand. The last column: the key is free since it was claimed.
SELECT k.queue, k.`key`, COALESCE((SELECT {shown_state} FROM qsidecar_jobs j WHERE j.id = k.job), 'deleted'),
  EXISTS (SELECT 1 FROM qsidecar_jobs j WHERE j.id = k.job AND j.key_state = 'start' AND j.claim_max IS NOT NULL) FROM qsidecar_keys k
WHERE (:keys) AND k.state IS NULL

-- name: lock_existing_keys
-- Fails if another transaction has locked one of them.
SELECT job FROM {keys} WHERE :keys FOR UPDATE NOWAIT

-- name: lock_free_keys
SELECT queue, `key`, job FROM {keys} WHERE :keys FOR UPDATE {skip_locked}

-- name: find_keys
SELECT queue, `key`, job FROM qsidecar_keys WHERE :keys

-- name: take_keys
-- Stores the ids of new jobs in the rows of their keys. The statement before it inserted the jobs.
INSERT INTO qsidecar_keys (queue, `key`, job, state, expires_at) VALUES :rows
ON DUPLICATE KEY UPDATE job = VALUES(job), state = NULL, expires_at = VALUES(expires_at)

-- name: taken_key
(:queue, :key, LAST_INSERT_ID() + :index * {step}, NULL, :now + INTERVAL :ttl_us MICROSECOND)

-- name: end_keys
UPDATE {keys} SET state = :states WHERE :keys

-- name: take_key_back
UPDATE qsidecar_keys SET expires_at = IF(job = :id, expires_at, :now), state = NULL, job = :id WHERE queue = :queue AND `key` = :key
