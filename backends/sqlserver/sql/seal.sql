-- Finds out whether the commit with a number happened. If the row does not have the number, a
-- later number is written, so that the commit cannot happen any more. The UPDATE comes first:
-- it waits for a transaction that has changed the row.
-- @seal_handle bigint
-- @seal_lane int
-- @seal_number bigint
-- sets 1
BEGIN TRANSACTION;
UPDATE {s}.qsidecar_commits SET number = @seal_number + 1, at = @now
WHERE handle = @seal_handle AND pipeline = @seal_lane AND number < @seal_number;
DECLARE @seal_found bigint;
SELECT @seal_found = c.number
FROM {s}.qsidecar_commits AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
WHERE c.handle = @seal_handle AND c.pipeline = @seal_lane;
IF @seal_found IS NULL
BEGIN
  INSERT INTO {s}.qsidecar_commits (handle, pipeline, number, at) VALUES (@seal_handle, @seal_lane, @seal_number + 1, @now);
  SET @seal_found = @seal_number + 1;
END;
COMMIT TRANSACTION;
SELECT @seal_found AS found;
