-- parameters: @meet_fates nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @meet_base bigint;
SET @meet_base = NEXT VALUE FOR [qsidecar].qsidecar_line;
DECLARE @meet TABLE (
  n int NOT NULL, id bigint NOT NULL PRIMARY KEY, host bigint NOT NULL, number bigint NOT NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, keyed tinyint NOT NULL, dead tinyint NOT NULL, wait_ms bigint NULL,
  fresh tinyint NOT NULL, back tinyint NOT NULL, attempts int NOT NULL, losses int NOT NULL, unrecorded int NOT NULL, fence bigint NOT NULL,
  cause varchar(16) COLLATE Latin1_General_100_BIN2 NULL, message nvarchar(max) NULL);
INSERT INTO @meet (n, id, host, number, queue, keyed, dead, wait_ms, fresh, back, attempts, losses, unrecorded, fence, cause, message)
SELECT x.n, x.id, x.host, x.number, x.queue, x.keyed, x.dead, x.wait_ms, x.fresh, x.back, x.attempts, x.losses, x.unrecorded, x.fence, x.cause, x.message
FROM OPENJSON(@meet_fates) WITH (
  n int, id bigint, host bigint, number bigint, queue nvarchar(4000), keyed tinyint, dead tinyint, wait_ms bigint, fresh tinyint, back tinyint,
  attempts int, losses int, unrecorded int, fence bigint, cause nvarchar(4000), message nvarchar(max)) AS x;
DECLARE @met TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = CASE WHEN m.dead = 1 THEN 'dead' ELSE 'waiting' END,
  attempts = m.attempts, losses = m.losses, unrecorded = m.unrecorded,
  position = CASE WHEN m.fresh = 1 THEN @meet_base + m.n ELSE j.position END,
  ready_at = CASE WHEN m.fresh = 1 THEN @now ELSE j.ready_at END,
  run_at = DATEADD(second, CONVERT(int, m.wait_ms / 1000), DATEADD(millisecond, CONVERT(int, m.wait_ms % 1000), @now)),
  last_error = CASE WHEN m.cause IS NULL THEN j.last_error ELSE m.message END,
  finished_at = CASE WHEN m.dead = 1 THEN @now END,
  expires_at = CASE WHEN m.dead = 1
    THEN DATEADD(second, CONVERT(int, j.keep_dead_ms / 1000), DATEADD(millisecond, CONVERT(int, j.keep_dead_ms % 1000), @now)) END, ahead = 0, token_host = NULL, token_number = NULL, owner = NULL, lease_ms = NULL,
  deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL
OUTPUT inserted.id INTO @met
FROM @meet AS m, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = m.id AND j.token_host = m.host AND j.token_number = m.number
OPTION (LOOP JOIN, FORCE ORDER);
INSERT INTO [qsidecar].qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT m.id, m.fence, m.attempts, m.cause, COALESCE(m.message, N''), @now
FROM @meet AS m INNER JOIN @met AS y ON y.id = m.id
WHERE m.cause IS NOT NULL;
IF EXISTS (SELECT 1 FROM @meet AS m WHERE m.dead = 1 AND m.keyed = 1)
  UPDATE k SET state = 'dead'
  FROM @meet AS m INNER JOIN [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK) ON k.job = m.id
  WHERE m.dead = 1 AND m.keyed = 1
  OPTION (LOOP JOIN, FORCE ORDER);
DECLARE @meet_back TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @meet_back (queue)
SELECT DISTINCT m.queue FROM @meet AS m WHERE m.back = 1;
UPDATE r SET returns = r.returns + 1
FROM @meet_back AS b INNER JOIN [qsidecar].qsidecar_returns AS r WITH (ROWLOCK, FORCESEEK) ON r.queue = b.queue
OPTION (LOOP JOIN, FORCE ORDER);
INSERT INTO [qsidecar].qsidecar_returns (queue, returns)
SELECT b.queue, 1
FROM @meet_back AS b
WHERE NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_returns AS r WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE r.queue = b.queue);
SET @wrote = @wrote + 1;
SELECT m.n FROM @meet AS m INNER JOIN @met AS y ON y.id = m.id;
SELECT b.queue, r.returns
FROM @meet_back AS b INNER JOIN [qsidecar].qsidecar_returns AS r WITH (FORCESEEK) ON r.queue = b.queue
OPTION (LOOP JOIN, FORCE ORDER);
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND lane = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, lane, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
