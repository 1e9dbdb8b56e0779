-- Finds out whether the commit with that number happened: its number is there, or
-- it never will be, because from now on a later one is. The UPDATE comes first: it
-- waits for a transaction that is still about to write the row.
-- @seal_handle bigint
-- @seal_lane int
-- @seal_number bigint
-- sets 1
BEGIN TRANSACTION;
UPDATE {s}.qsidecar_commits SET number = @seal_number + 1, at = @now
WHERE handle = @seal_handle AND lane = @seal_lane AND number < @seal_number;
DECLARE @seal_found bigint;
SELECT @seal_found = c.number
FROM {s}.qsidecar_commits AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
WHERE c.handle = @seal_handle AND c.lane = @seal_lane;
IF @seal_found IS NULL
BEGIN
  INSERT INTO {s}.qsidecar_commits (handle, lane, number, at) VALUES (@seal_handle, @seal_lane, @seal_number + 1, @now);
  SET @seal_found = @seal_number + 1;
END;
COMMIT TRANSACTION;
SELECT @seal_found AS found;
