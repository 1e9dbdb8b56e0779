-- Rows of qsidecar_queues that a write changes. Statements that list rows are written where they are used.

-- name: register
-- Adds a queue, so that maintenance scans it, and shows all sidecars that its row is in use.
INSERT INTO qsidecar_queues (queue) VALUES (:queue) ON DUPLICATE KEY UPDATE requeues = requeues + 1

-- name: count_return
-- Counts a job that is given back.
INSERT INTO qsidecar_queues (queue, requeues) VALUES (:queue, 1) ON DUPLICATE KEY UPDATE requeues = requeues + 1
