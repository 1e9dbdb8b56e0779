-- parameters: @unheld_groups nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @unheld TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, stripe int NOT NULL, PRIMARY KEY (queue, stripe));
INSERT INTO @unheld (queue, stripe)
SELECT x.queue, x.stripe FROM OPENJSON(@unheld_groups) WITH (queue nvarchar(4000), stripe int) AS x;
DECLARE @unheld_locked TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, stripe int NOT NULL, PRIMARY KEY (queue, stripe));
INSERT INTO @unheld_locked (queue, stripe)
SELECT l.queue, l.stripe
FROM @unheld AS x
INNER JOIN [qsidecar].qsidecar_stripes AS l WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON l.queue = x.queue AND l.stripe = x.stripe
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE l SET passes = l.passes + 1
FROM @unheld_locked AS x, [qsidecar].qsidecar_stripes AS l WITH (ROWLOCK, FORCESEEK)
WHERE l.queue = x.queue AND l.stripe = x.stripe
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
SELECT x.queue, x.stripe FROM @unheld_locked AS x;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
