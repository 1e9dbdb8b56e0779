DECLARE @promoted TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = 'ready', run_at = NULL, ready_at = @now, position = @promote_base + p.n
OUTPUT inserted.id INTO @promoted
FROM (SELECT x.id, ROW_NUMBER() OVER (ORDER BY x.run_at, x.id) - 1 AS n FROM @promote AS x) AS p,
  {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = p.id AND j.run_at IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @promoted);
SELECT p.queue FROM @promote AS p INNER JOIN @promoted AS y ON y.id = p.id;
