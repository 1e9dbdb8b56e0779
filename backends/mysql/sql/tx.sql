-- The numbers of commits. {now} is the server's clock.

-- name: begin
START TRANSACTION

-- name: begin_galera
-- galera.go explains why a transaction on Galera begins and ends in this way.
SET autocommit = 0;
START TRANSACTION;
SAVEPOINT qsidecar_transaction

-- name: commit
COMMIT

-- name: release_galera
-- It also stops the waiting for other nodes, which could fail after COMMIT.
SET wsrep_sync_wait = 0;
RELEASE SAVEPOINT qsidecar_transaction

-- name: after_commit
SELECT 1

-- name: end_galera
SET autocommit = 1, wsrep_sync_wait = 1

-- name: rollback
ROLLBACK

-- fragment: next_number
-- The stored number must be the previous one.
ON DUPLICATE KEY UPDATE number = IF(number = VALUES(number) - 1, VALUES(number), -1), at = {now}

-- name: mark
INSERT INTO qsidecar_commits (handle, number, at) VALUES (:handle, :number, {now}) {next_number}

-- name: mark_if
-- If the previous number is another one, or the previous statement changed another number of rows, the
-- new number is -1. It is out of range, so the transaction fails.
INSERT INTO qsidecar_commits (handle, number, at) VALUES (:handle, IF(ROW_COUNT() = :acked, :number, -1), {now}) {next_number}

-- name: marked
SELECT number FROM qsidecar_commits WHERE handle = :handle FOR UPDATE

-- name: committed
SELECT number FROM qsidecar_commits WHERE handle = :handle

-- name: seal
-- The number must still be the one that was read. A missing row is inserted.
INSERT INTO qsidecar_commits (handle, number, at) VALUES (:handle, :number, {now})
ON DUPLICATE KEY UPDATE number = IF(number = :before, VALUES(number), -1), at = {now}

-- name: sidecar_alive
SELECT 1 FROM qsidecar_sidecars WHERE sidecar = :sidecar AND NOT dead AND NOT has_left

-- name: clock
SELECT {now}
