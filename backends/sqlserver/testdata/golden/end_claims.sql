-- parameters: @ending_claims nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @ending_base bigint;
SET @ending_base = NEXT VALUE FOR [qsidecar].qsidecar_sequence;
DECLARE @ending TABLE (
  n int NOT NULL, id bigint NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, keyed tinyint NOT NULL, dead tinyint NOT NULL, wait_ms bigint NULL,
  fresh tinyint NOT NULL, back tinyint NOT NULL, attempts int NOT NULL, losses int NOT NULL, prefetch_losses int NOT NULL, fence bigint NOT NULL,
  cause varchar(16) COLLATE Latin1_General_100_BIN2 NULL, message nvarchar(max) NULL);
INSERT INTO @ending (n, id, sidecar, number, queue, keyed, dead, wait_ms, fresh, back, attempts, losses, prefetch_losses, fence, cause, message)
SELECT x.n, x.id, x.sidecar, x.number, x.queue, x.keyed, x.dead, x.wait_ms, x.fresh, x.back, x.attempts, x.losses, x.prefetch_losses, x.fence, x.cause, x.message
FROM OPENJSON(@ending_claims) WITH (
  n int, id bigint, sidecar bigint, number bigint, queue nvarchar(4000), keyed tinyint, dead tinyint, wait_ms bigint, fresh tinyint, back tinyint,
  attempts int, losses int, prefetch_losses int, fence bigint, cause nvarchar(4000), message nvarchar(max)) AS x;
DECLARE @ended TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = CASE WHEN e.dead = 1 THEN 'dead' WHEN e.wait_ms IS NULL THEN 'ready' ELSE 'scheduled' END,
  attempts = e.attempts, losses = e.losses, prefetch_losses = e.prefetch_losses,
  position = CASE WHEN e.fresh = 1 THEN @ending_base + e.n ELSE j.position END,
  ready_at = CASE WHEN e.fresh = 1 THEN @now ELSE j.ready_at END,
  run_at = DATEADD(second, CONVERT(int, e.wait_ms / 1000), DATEADD(millisecond, CONVERT(int, e.wait_ms % 1000), @now)),
  last_error = CASE WHEN e.cause IS NULL THEN j.last_error ELSE e.message END,
  finished_at = CASE WHEN e.dead = 1 THEN @now END,
  prune_at = CASE WHEN e.dead = 1
    THEN DATEADD(second, CONVERT(int, j.retention_dead_ms / 1000), DATEADD(millisecond, CONVERT(int, j.retention_dead_ms % 1000), @now)) END, prefetched = 0, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL,
  deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL
OUTPUT inserted.id INTO @ended
FROM @ending AS e, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = e.id AND j.token_sidecar = e.sidecar AND j.token_number = e.number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT e.id, e.fence, e.attempts, e.cause, COALESCE(e.message, N''), @now
FROM @ending AS e INNER JOIN @ended AS y ON y.id = e.id
WHERE e.cause IS NOT NULL;
IF EXISTS (SELECT 1 FROM @ending AS e WHERE e.dead = 1 AND e.keyed = 1)
  UPDATE k SET state = 'dead'
  FROM @ending AS e INNER JOIN [qsidecar].qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = e.id
  WHERE e.dead = 1 AND e.keyed = 1
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @ending_back TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @ending_back (queue)
SELECT DISTINCT e.queue FROM @ending AS e WHERE e.back = 1;
UPDATE r SET requeues = r.requeues + 1
FROM @ending_back AS b INNER JOIN [qsidecar].qsidecar_requeues AS r WITH (ROWLOCK, FORCESEEK) ON r.queue = b.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_requeues (queue, requeues)
SELECT b.queue, 1
FROM @ending_back AS b
WHERE NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_requeues AS r WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE r.queue = b.queue);
SET @wrote = @wrote + 1;
SELECT e.n FROM @ending AS e INNER JOIN @ended AS y ON y.id = e.id;
SELECT b.queue, r.requeues
FROM @ending_back AS b INNER JOIN [qsidecar].qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = b.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
