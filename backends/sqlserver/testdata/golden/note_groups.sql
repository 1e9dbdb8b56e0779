-- parameters: @noted_groups nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
INSERT INTO [qsidecar].qsidecar_admissions (queue, group_name, note)
SELECT x.queue, x.name, x.note
FROM OPENJSON(@noted_groups) WITH (queue nvarchar(4000), name nvarchar(4000), note bigint) AS x;
SET @wrote = @wrote + 1;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
