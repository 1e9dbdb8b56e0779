-- Limits the wait for rows that other programs have locked: other jobs are in the same commit.
-- sets 0
SET LOCK_TIMEOUT 500;
