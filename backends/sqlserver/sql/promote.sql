-- Makes due jobs ready, in the order in which they are due: at most a thousand. It
-- answers with the queue of each.
-- @promote_limit bigint
-- sets 1
DECLARE @promote_base bigint;
SET @promote_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @promote TABLE (id bigint NOT NULL PRIMARY KEY, run_at datetime2(6) NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @promote (id, run_at, queue)
SELECT TOP (@promote_limit) j.id, j.run_at, j.queue
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.state = 'pending' AND j.run_at IS NOT NULL AND j.run_at <= @now
ORDER BY j.run_at, j.id;
DECLARE @promoted TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET run_at = NULL, ready_at = @now, position = @promote_base + p.n
OUTPUT inserted.id INTO @promoted
FROM (SELECT x.id, ROW_NUMBER() OVER (ORDER BY x.run_at, x.id) - 1 AS n FROM @promote AS x) AS p,
  {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = p.id AND j.state = 'pending' AND j.run_at IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @promoted);
SELECT p.queue FROM @promote AS p INNER JOIN @promoted AS y ON y.id = p.id;
