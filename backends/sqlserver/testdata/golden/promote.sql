-- parameters: @promote_limit bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @promote_base bigint;
SET @promote_base = NEXT VALUE FOR [qsidecar].qsidecar_sequence;
DECLARE @promote TABLE (id bigint NOT NULL PRIMARY KEY, run_at datetime2(6) NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, blocked tinyint NOT NULL);
INSERT INTO @promote (id, run_at, queue, blocked)
SELECT TOP (@promote_limit) r.id, r.run_at, r.queue, CASE WHEN r.group_name IS NULL THEN 0 ELSE 1 END
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN [qsidecar].qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.run_at IS NOT NULL AND j.run_at <= @now AND r.run_at IS NOT NULL
ORDER BY j.run_at, j.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @promoted TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = 'ready', run_at = NULL, ready_at = @now, position = @promote_base + p.n, group_noticed = NULL
OUTPUT inserted.id INTO @promoted
FROM (SELECT x.id, ROW_NUMBER() OVER (ORDER BY x.run_at, x.id) - 1 AS n FROM @promote AS x) AS p,
  [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = p.id AND j.run_at IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @promoted);
SELECT CASE WHEN p.blocked = 1 THEN '' ELSE p.queue END AS queue FROM @promote AS p INNER JOIN @promoted AS y ON y.id = p.id;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
