-- A key that another job has by now, or another of these, is taken. If whole is 1 that refuses
-- all. Otherwise that job stays dead.
DECLARE @retry_known TABLE (id bigint NOT NULL PRIMARY KEY, job bigint NOT NULL, held tinyint NOT NULL);
INSERT INTO @retry_known (id, job, held)
SELECT x.id, k.job, CASE WHEN k.job <> x.id AND (k.state IS NULL OR k.expires_at > @now) THEN 1 ELSE 0 END
FROM @retry AS x
INNER JOIN {s}.qsidecar_keys AS k WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK, NOWAIT) ON k.queue = @retry_queue AND k.name = x.name
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE x SET taken = 1
FROM @retry AS x
WHERE EXISTS (SELECT 1 FROM @retry_known AS h WHERE h.id = x.id AND h.held = 1)
  OR EXISTS (SELECT 1 FROM @retry AS o WHERE o.name = x.name AND o.id < x.id);
UPDATE k SET job = x.id, state = NULL, expires_at = CASE WHEN k.job = x.id THEN k.expires_at ELSE @now END
FROM @retry AS x
INNER JOIN @retry_known AS h ON h.id = x.id
INNER JOIN {s}.qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = @retry_queue AND k.name = x.name
WHERE x.taken = 0
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_keys (queue, name, job, expires_at)
SELECT @retry_queue, x.name, x.id, @now
FROM @retry AS x
WHERE x.name IS NOT NULL AND x.taken = 0 AND NOT EXISTS (SELECT 1 FROM @retry_known AS h WHERE h.id = x.id);
DECLARE @retried TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = 'ready', run_at = NULL, position = @retry_base + x.n, ready_at = @now,
  attempts = 0, losses = 0, prefetch_losses = 0, finished_at = NULL, expires_at = NULL
OUTPUT inserted.id INTO @retried
FROM @retry AS x, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id AND x.taken = 0
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
SELECT CASE WHEN @retry_whole = 1 THEN (SELECT COUNT_BIG(*) FROM @retry AS x WHERE x.taken = 1) ELSE 0 END AS taken,
  (SELECT COUNT_BIG(*) FROM @retried AS y) AS retried, (SELECT COUNT_BIG(*) FROM @retry AS x) AS seen,
  (SELECT TOP (1) x.finished_at FROM @retry AS x ORDER BY x.n DESC) AS finished_at,
  (SELECT TOP (1) x.id FROM @retry AS x ORDER BY x.n DESC) AS id;
