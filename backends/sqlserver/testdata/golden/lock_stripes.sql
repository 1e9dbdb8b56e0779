-- parameters: @striped_groups nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @striped TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, stripe int NOT NULL, PRIMARY KEY (queue, stripe));
INSERT INTO @striped (queue, stripe)
SELECT x.queue, x.stripe FROM OPENJSON(@striped_groups) WITH (queue nvarchar(4000), stripe int) AS x;
UPDATE l SET passes = l.passes + 1
FROM (SELECT TOP (1000) y.queue, y.stripe FROM @striped AS y ORDER BY y.queue, y.stripe) AS x, [qsidecar].qsidecar_stripes AS l WITH (ROWLOCK, FORCESEEK)
WHERE l.queue = x.queue AND l.stripe = x.stripe
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_stripes (queue, stripe, passes)
SELECT x.queue, x.stripe, 1
FROM @striped AS x
WHERE NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_stripes AS l WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE l.queue = x.queue AND l.stripe = x.stripe);
SET @wrote = @wrote + 1;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
