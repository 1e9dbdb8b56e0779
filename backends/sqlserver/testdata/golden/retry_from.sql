-- parameters: @retry_queue varchar(128), @retry_at datetime2(6), @retry_id bigint, @retry_limit bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @retry_base bigint;
SET @retry_base = NEXT VALUE FOR [qsidecar].qsidecar_sequence;
DECLARE @retry TABLE (
  id bigint NOT NULL PRIMARY KEY, n int NOT NULL, finished_at datetime2(6) NOT NULL, name varbinary(510) NULL,
  [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, taken tinyint NOT NULL DEFAULT 0);
INSERT INTO @retry (id, n, finished_at, name, [key])
SELECT r.id, ROW_NUMBER() OVER (ORDER BY r.finished_at, r.id) - 1, r.finished_at, CASE WHEN r.key_state IS NULL THEN CONVERT(varbinary(510), r.[key]) END, r.[key]
FROM (
  SELECT TOP (@retry_limit) j.id, j.finished_at, j.[key], j.key_state
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, UPDLOCK, ROWLOCK)
  WHERE j.finished_at IS NOT NULL AND j.queue = @retry_queue AND j.state = 'dead'
    AND j.finished_at >= @retry_at AND (j.finished_at > @retry_at OR j.id > @retry_id)
  ORDER BY j.finished_at, j.id
) AS r
OPTION (KEEPFIXED PLAN);
DECLARE @retry_known TABLE (id bigint NOT NULL PRIMARY KEY, job bigint NOT NULL, held tinyint NOT NULL);
INSERT INTO @retry_known (id, job, held)
SELECT x.id, k.job, CASE WHEN k.job <> x.id AND (k.state IS NULL OR k.expires_at > @now) THEN 1 ELSE 0 END
FROM @retry AS x
INNER JOIN [qsidecar].qsidecar_keys AS k WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK, NOWAIT) ON k.queue = @retry_queue AND k.name = x.name
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE x SET taken = 1
FROM @retry AS x
WHERE EXISTS (SELECT 1 FROM @retry_known AS h WHERE h.id = x.id AND h.held = 1)
  OR EXISTS (SELECT 1 FROM @retry AS o WHERE o.name = x.name AND o.id < x.id);
UPDATE k SET job = x.id, state = NULL, expires_at = CASE WHEN k.job = x.id THEN k.expires_at ELSE @now END
FROM @retry AS x
INNER JOIN @retry_known AS h ON h.id = x.id
INNER JOIN [qsidecar].qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = @retry_queue AND k.name = x.name
WHERE x.taken = 0
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_keys (queue, name, job, expires_at)
SELECT @retry_queue, x.name, x.id, @now
FROM @retry AS x
WHERE x.name IS NOT NULL AND x.taken = 0 AND NOT EXISTS (SELECT 1 FROM @retry_known AS h WHERE h.id = x.id);
DECLARE @retried TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = 'ready', run_at = NULL, position = @retry_base + x.n, ready_at = @now,
  attempts = 0, losses = 0, prefetch_losses = 0, finished_at = NULL, prune_at = NULL, start_before = NULL, group_noticed = NULL
OUTPUT inserted.id INTO @retried
FROM @retry AS x, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id AND x.taken = 0
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
SELECT (SELECT COUNT_BIG(*) FROM @retried AS y) AS retried, (SELECT COUNT_BIG(*) FROM @retry AS x) AS seen,
  (SELECT TOP (1) x.finished_at FROM @retry AS x ORDER BY x.n DESC) AS finished_at,
  (SELECT TOP (1) x.id FROM @retry AS x ORDER BY x.n DESC) AS id;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
