-- Statements of an operator's commands.

-- name: pause
INSERT INTO qsidecar_queues (queue, paused) VALUES (:queue, 1) ON DUPLICATE KEY UPDATE paused = 1

-- name: resume
UPDATE qsidecar_queues SET paused = 0 WHERE queue = :queue

-- name: any_in_segment
SELECT EXISTS (SELECT 1 FROM {jobs} WHERE segment = :segment)

-- name: take_key_back
UPDATE qsidecar_keys SET expires_at = IF(job = :id, expires_at, :now), state = NULL, job = :id WHERE queue = :queue AND `key` = :key
