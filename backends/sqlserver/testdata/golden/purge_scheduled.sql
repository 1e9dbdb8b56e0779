-- parameters: @purge_queue varchar(128), @purge_limit bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT TOP (@purge_limit) r.id
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_delayed), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN [qsidecar].qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.run_at IS NOT NULL AND j.queue = @purge_queue
ORDER BY j.run_at, j.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @pruned TABLE (id bigint NOT NULL PRIMARY KEY, [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, last_error nvarchar(max) NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
  admitted_group nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
DELETE j
OUTPUT deleted.id, deleted.[key], deleted.last_error, deleted.queue, deleted.group_name, deleted.admitted_group INTO @pruned
FROM @prune AS p, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = p.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @prune_failures bigint = 1000;
WHILE @prune_failures = 1000
BEGIN
  DELETE f
  FROM (
    SELECT TOP (1000) o.job, o.fence
    FROM @pruned AS d INNER JOIN [qsidecar].qsidecar_failures AS o WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON o.job = d.id
    WHERE d.last_error IS NOT NULL
  ) AS x INNER JOIN [qsidecar].qsidecar_failures AS f WITH (ROWLOCK, FORCESEEK) ON f.job = x.job AND f.fence = x.fence
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
  SET @prune_failures = @@ROWCOUNT;
END;
SET @wrote = @wrote + (SELECT COUNT(*) FROM @pruned);
SELECT COUNT_BIG(*) AS gone FROM @pruned AS d;
UPDATE k SET state = 'deleted'
FROM @pruned AS d INNER JOIN [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = d.id
WHERE d.[key] IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT DISTINCT d.queue, d.admitted_group FROM @pruned AS d WHERE d.admitted_group IS NOT NULL;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
