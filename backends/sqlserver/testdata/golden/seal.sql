-- parameters: @seal_handle bigint, @seal_lane int, @seal_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
BEGIN TRANSACTION;
UPDATE [qsidecar].qsidecar_commits SET number = @seal_number + 1, at = @now
WHERE handle = @seal_handle AND pipeline = @seal_lane AND number < @seal_number;
DECLARE @seal_found bigint;
SELECT @seal_found = c.number
FROM [qsidecar].qsidecar_commits AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
WHERE c.handle = @seal_handle AND c.pipeline = @seal_lane;
IF @seal_found IS NULL
BEGIN
  INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@seal_handle, @seal_lane, @seal_number + 1, @now);
  SET @seal_found = @seal_number + 1;
END;
COMMIT TRANSACTION;
SELECT @seal_found AS found;
