-- Rows that other programs hold are not waited for: others wait in the same commit.
-- sets 0
SET LOCK_TIMEOUT 500;
