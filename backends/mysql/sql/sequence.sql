-- Repairs AUTO_INCREMENT.

-- name: highest_named
SELECT GREATEST(COALESCE((SELECT MAX(job) FROM qsidecar_failures), 0), COALESCE((SELECT MAX(job) FROM (SELECT job FROM qsidecar_keys LIMIT :limit) k), 0))

-- name: highest_id
-- A server that was restarted has no number for a table that was not used since. Ids above that of a row are new in any case.
SELECT COALESCE(MAX(id), 0) FROM qsidecar_jobs

-- name: next_id
SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'qsidecar_jobs'

-- name: store_id
INSERT INTO qsidecar_jobs (id, queue, state, finished_at) VALUES (:id, 'qsidecar', 'done', {now})

-- name: delete_id
DELETE FROM qsidecar_jobs WHERE id = :id
