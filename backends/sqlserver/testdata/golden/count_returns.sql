-- parameters: @returned_queues nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @returned TABLE (n int NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @returned (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@returned_queues) WITH (n int, queue nvarchar(4000)) AS x;
UPDATE r SET requeues = r.requeues + 1
FROM (SELECT TOP (1000) y.queue FROM @returned AS y ORDER BY y.queue) AS x, [qsidecar].qsidecar_requeues AS r WITH (ROWLOCK, FORCESEEK)
WHERE r.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_requeues (queue, requeues)
SELECT x.queue, 1
FROM @returned AS x
WHERE NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_requeues AS r WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE r.queue = x.queue);
SET @wrote = @wrote + 1;
SELECT x.n, r.requeues
FROM @returned AS x INNER JOIN [qsidecar].qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
