-- The end of every batch of a transaction. A transaction that wrote has the number of its
-- commit in its row of qsidecar_commits. If the row has a later number, the INSERT
-- fails, and with it the transaction: seal.sql has found that the commit did not happen.
-- @mark_handle bigint
-- @mark_lane int
-- @mark_number bigint
-- sets 1
IF @wrote > 0
BEGIN
  UPDATE {s}.qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO {s}.qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
