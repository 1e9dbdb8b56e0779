DECLARE @pruned TABLE (id bigint NOT NULL PRIMARY KEY, [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, last_error nvarchar(max) NULL);
DELETE j
OUTPUT deleted.id, deleted.[key], deleted.last_error INTO @pruned
FROM @prune AS p, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = p.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @prune_failures bigint = 1000;
WHILE @prune_failures = 1000
BEGIN
  DELETE f
  FROM (
    SELECT TOP (1000) o.job, o.fence
    FROM @pruned AS d INNER JOIN {s}.qsidecar_failures AS o WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON o.job = d.id
    WHERE d.last_error IS NOT NULL
  ) AS x INNER JOIN {s}.qsidecar_failures AS f WITH (ROWLOCK, FORCESEEK) ON f.job = x.job AND f.fence = x.fence
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
  SET @prune_failures = @@ROWCOUNT;
END;
SET @wrote = @wrote + (SELECT COUNT(*) FROM @pruned);
SELECT COUNT_BIG(*) AS gone FROM @pruned AS d;
