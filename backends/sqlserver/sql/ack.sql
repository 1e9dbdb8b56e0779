-- Ends claims with success. The claim's policy decided whether the row is deleted or kept.
-- Failures are deleted a thousand at a time, because a job can have any number of them. It
-- answers with the numbers of the leases that were valid.
--
-- A transaction that stores keys locks a key, then reads its job. So a transaction that has a
-- job never waits for its key (NOWAIT; error 1222), here and in all other statements that
-- change keys: without row versions each would wait for the other.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table
-- @ack_leases nvarchar(max)
-- @ack_blob varbinary(max)
-- sets 1
DECLARE @ack TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL, start bigint NULL, size bigint NULL);
INSERT INTO @ack (n, id, sidecar, number, start, size)
SELECT x.n, x.id, x.sidecar, x.number, x.start, x.size
FROM OPENJSON(@ack_leases) WITH (n int, id bigint, sidecar bigint, number bigint, start bigint, size bigint) AS x;
DECLARE @acked TABLE (
  id bigint NOT NULL PRIMARY KEY, state varchar(9) COLLATE Latin1_General_100_BIN2 NOT NULL,
  [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, last_error nvarchar(max) NULL);
DELETE j
OUTPUT deleted.id, deleted.state, deleted.[key], deleted.last_error
INTO @acked
FROM @ack AS a, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = a.id AND j.token_sidecar = a.sidecar AND j.token_number = a.number AND j.retention_done_ms IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF EXISTS (SELECT 1 FROM @ack AS a WHERE NOT EXISTS (SELECT 1 FROM @acked AS d WHERE d.id = a.id))
  UPDATE j SET state = 'done', finished_at = @now,
    expires_at = DATEADD(second, CONVERT(int, j.retention_done_ms / 1000), DATEADD(millisecond, CONVERT(int, j.retention_done_ms % 1000), @now)),
    result = SUBSTRING(@ack_blob, a.start + 1, a.size), attempts = j.attempts + j.prefetched, {unclaimed}
  OUTPUT inserted.id, inserted.state, inserted.[key], inserted.last_error
  INTO @acked
  FROM @ack AS a, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
  WHERE j.id = a.id AND j.token_sidecar = a.sidecar AND j.token_number = a.number AND j.retention_done_ms IS NOT NULL
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @ack_failures bigint = 0;
IF EXISTS (SELECT 1 FROM @acked AS d WHERE d.state = 'claimed' AND d.last_error IS NOT NULL)
  SET @ack_failures = 1000;
WHILE @ack_failures = 1000
BEGIN
  DELETE f
  FROM (
    SELECT TOP (1000) o.job, o.fence
    FROM @acked AS d INNER JOIN {s}.qsidecar_failures AS o WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON o.job = d.id
    WHERE d.state = 'claimed' AND d.last_error IS NOT NULL
  ) AS x INNER JOIN {s}.qsidecar_failures AS f WITH (ROWLOCK, FORCESEEK) ON f.job = x.job AND f.fence = x.fence
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
  SET @ack_failures = @@ROWCOUNT;
END;
IF EXISTS (SELECT 1 FROM @acked AS d WHERE d.[key] IS NOT NULL)
  UPDATE k SET state = 'done'
  FROM @acked AS d INNER JOIN {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = d.id
  WHERE d.[key] IS NOT NULL
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @acked);
SELECT a.n FROM @ack AS a INNER JOIN @acked AS d ON d.id = a.id;
