-- parameters: @every_queue varchar(128), @every_note bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @every TABLE (name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @every_last nvarchar(256) = N'';
DECLARE @every_next nvarchar(256);
WHILE 1 = 1
BEGIN
  SET @every_next = NULL;
  SELECT TOP (1) @every_next = j.group_name FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @every_queue AND j.group_name > @every_last
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  IF @every_next IS NULL
    BREAK;
  INSERT INTO @every (name) VALUES (@every_next);
  SET @every_last = @every_next;
END;
SET @every_last = N'';
WHILE 1 = 1
BEGIN
  SET @every_next = NULL;
  SELECT TOP (1) @every_next = j.admitted_group FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.admitted_group IS NOT NULL AND j.queue = @every_queue AND j.admitted_group > @every_last
  ORDER BY j.admitted_group
  OPTION (KEEPFIXED PLAN);
  IF @every_next IS NULL
    BREAK;
  INSERT INTO @every (name) VALUES (@every_next);
  SET @every_last = @every_next;
END;
INSERT INTO [qsidecar].qsidecar_admissions (queue, group_name, note)
SELECT DISTINCT @every_queue, x.name, @every_note FROM @every AS x;
SET @wrote = @wrote + 1;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
