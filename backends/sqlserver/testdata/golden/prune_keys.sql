-- parameters: @prune_limit bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @prune_key TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name varbinary(510) NOT NULL, PRIMARY KEY (queue, name));
INSERT INTO @prune_key (queue, name)
SELECT TOP (@prune_limit) r.queue, r.name
FROM [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_prunable), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN [qsidecar].qsidecar_keys AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.queue = k.queue AND r.name = k.name
WHERE k.state IS NOT NULL AND k.expires_at <= @now
ORDER BY k.expires_at
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DELETE k
FROM @prune_key AS x INNER JOIN [qsidecar].qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = x.queue AND k.name = x.name
WHERE k.state IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @prune_gone bigint = @@ROWCOUNT;
DECLARE @prune_commit TABLE (handle bigint NOT NULL, pipeline int NOT NULL, PRIMARY KEY (handle, pipeline));
INSERT INTO @prune_commit (handle, pipeline)
SELECT TOP (100) c.handle, c.pipeline
FROM [qsidecar].qsidecar_commits AS c WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE c.at < DATEADD(day, -7, @now);
DELETE c
FROM @prune_commit AS x INNER JOIN [qsidecar].qsidecar_commits AS c WITH (ROWLOCK, FORCESEEK) ON c.handle = x.handle AND c.pipeline = x.pipeline
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
SELECT @prune_gone AS gone;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
