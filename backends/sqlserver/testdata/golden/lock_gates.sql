-- parameters: @gate_queues nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @gate TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @gate (queue)
SELECT x.queue FROM OPENJSON(@gate_queues) WITH (n int, queue nvarchar(4000)) AS x;
UPDATE g SET passes = g.passes + 1
FROM (SELECT TOP (1000) y.queue FROM @gate AS y ORDER BY y.queue) AS x, [qsidecar].qsidecar_gates AS g WITH (ROWLOCK, FORCESEEK)
WHERE g.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_gates (queue, passes, next_at)
SELECT x.queue, 1, 0
FROM @gate AS x
WHERE NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_gates AS g WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE g.queue = x.queue);
SET @wrote = @wrote + 1;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
