-- Records that prefetched jobs were handed out. To do it twice has no effect. It answers with
-- the numbers of the leases that were valid.
-- @deliver_leases nvarchar(max)
-- sets 1
DECLARE @deliver TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL, worker nvarchar(400) NULL, ago_ms bigint NOT NULL);
INSERT INTO @deliver (n, id, sidecar, number, worker, ago_ms)
SELECT x.n, x.id, x.sidecar, x.number, x.worker, x.ago_ms
FROM OPENJSON(@deliver_leases) WITH (n int, id bigint, sidecar bigint, number bigint, worker nvarchar(4000), ago_ms bigint) AS x;
DECLARE @delivered TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET attempts = j.attempts + j.prefetched, prefetched = 0, prefetch_losses = 0, worker = COALESCE(j.worker, d.worker),
  deadline = {deliver_end}, due_at = COALESCE(j.due_at, {deliver_end})
OUTPUT inserted.id INTO @delivered
FROM @deliver AS d, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = d.id AND j.token_sidecar = d.sidecar AND j.token_number = d.number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @delivered);
SELECT d.n FROM @deliver AS d INNER JOIN @delivered AS y ON y.id = d.id;
