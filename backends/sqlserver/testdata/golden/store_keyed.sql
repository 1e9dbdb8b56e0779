-- parameters: @keyed_jobs nvarchar(max), @keyed_blob varbinary(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @keyed_base bigint;
SET @keyed_base = NEXT VALUE FOR [qsidecar].qsidecar_sequence;
DECLARE @keyed TABLE (
  n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, priority smallint NOT NULL, due datetime2(6) NULL,
  max_attempts smallint NULL, timeout_ms bigint NULL, headers nvarchar(max) NULL, start bigint NOT NULL, size bigint NOT NULL,
  name varbinary(510) NULL, [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, until datetime2(6) NULL, stored tinyint NOT NULL,
  start_before datetime2(6) NULL, within_ms bigint NULL, on_expiry varchar(6) COLLATE Latin1_General_100_BIN2 NULL, dead_ms bigint NULL, retain_ms bigint NULL,
  key_state varchar(7) COLLATE Latin1_General_100_BIN2 NULL, group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
INSERT INTO @keyed (n, queue, priority, due, max_attempts, timeout_ms, headers, start, size, name, [key], until, stored, start_before, within_ms, on_expiry, dead_ms, retain_ms, key_state, group_name)
SELECT x.n, x.queue, x.priority, CASE
    WHEN x.delay_ms > 0 THEN DATEADD(second, CONVERT(int, x.delay_ms / 1000), DATEADD(millisecond, CONVERT(int, x.delay_ms % 1000), @now))
    WHEN x.run_at > @now THEN x.run_at END,
  x.max_attempts, x.timeout_ms, x.headers, x.start, x.size,
  CONVERT(varbinary(8000), x.[key]), x.[key], DATEADD(second, CONVERT(int, x.ttl_ms / 1000), DATEADD(millisecond, CONVERT(int, x.ttl_ms % 1000), @now)), 1,
  x.start_before, x.within_ms, x.on_expiry, x.dead_ms, x.retain_ms, x.key_state, x.group_name
FROM OPENJSON(@keyed_jobs) WITH (
  n int, queue nvarchar(4000), priority smallint, delay_ms bigint, run_at datetime2(6), max_attempts smallint, timeout_ms bigint,
  headers nvarchar(max), start bigint, size bigint, [key] nvarchar(4000), ttl_ms bigint,
  start_before datetime2(6), within_ms bigint, on_expiry nvarchar(4000), dead_ms bigint, retain_ms bigint, key_state nvarchar(4000), group_name nvarchar(4000)) AS x;
DECLARE @keyed_known TABLE (n int NOT NULL PRIMARY KEY, free tinyint NOT NULL);
INSERT INTO @keyed_known (n, free)
SELECT x.n, CASE WHEN k.expires_at <= @now AND (k.state IS NOT NULL OR o.id IS NULL) THEN 1 ELSE 0 END
FROM (SELECT TOP (1000) y.n, y.queue, y.name FROM @keyed AS y WHERE y.name IS NOT NULL ORDER BY y.queue, y.name) AS x
INNER JOIN [qsidecar].qsidecar_keys AS k WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) ON k.queue = x.queue AND k.name = x.name
LEFT JOIN [qsidecar].qsidecar_jobs AS o WITH (FORCESEEK) ON o.id = k.job AND k.state IS NULL AND k.expires_at <= @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE x SET stored = 0
FROM @keyed AS x INNER JOIN @keyed_known AS f ON f.n = x.n
WHERE f.free = 0;
UPDATE k SET job = @keyed_base + x.n, expires_at = x.until, state = NULL
FROM @keyed AS x
INNER JOIN @keyed_known AS f ON f.n = x.n
INNER JOIN [qsidecar].qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = x.queue AND k.name = x.name
WHERE f.free = 1
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO [qsidecar].qsidecar_keys (queue, name, job, expires_at)
SELECT x.queue, x.name, @keyed_base + x.n, x.until
FROM @keyed AS x
WHERE x.name IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @keyed_known AS f WHERE f.n = x.n);
INSERT INTO [qsidecar].qsidecar_jobs (id, position, enqueued_at, ready_at, state, queue, priority, max_attempts, timeout_ms, run_at, [key], key_state, headers, start_before, on_expiry, retention_dead_ms, retain_ms, group_name, group_noticed, payload)
SELECT @keyed_base + x.n, @keyed_base + x.n, @now, @now, CASE WHEN x.due IS NULL THEN 'ready' ELSE 'scheduled' END, x.queue, x.priority, x.max_attempts, x.timeout_ms, x.due, x.[key], x.key_state, x.headers,
  CASE WHEN x.within_ms IS NULL THEN x.start_before WHEN x.due >= '9900-01-01' THEN '9999-12-31 23:59:59.999'
  ELSE DATEADD(second, CONVERT(int, x.within_ms / 1000), DATEADD(millisecond, CONVERT(int, x.within_ms % 1000), COALESCE(x.due, @now))) END, x.on_expiry, x.dead_ms, x.retain_ms, x.group_name, CASE WHEN x.group_name IS NOT NULL THEN 1 END,
  SUBSTRING(@keyed_blob, x.start + 1, x.size)
FROM @keyed AS x
WHERE x.stored = 1;
SET @wrote = @wrote + 1;
SELECT x.n, 1 AS stored, j.id, CASE WHEN j.run_at IS NULL THEN 'ready' ELSE 'scheduled' END AS state, 0 AS freed
FROM @keyed AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = @keyed_base + x.n
WHERE x.stored = 1
UNION ALL
SELECT x.n, 0, k.job, COALESCE(k.state, CASE WHEN o.run_at IS NOT NULL THEN 'scheduled' WHEN o.state = 'ready' AND o.group_name IS NOT NULL THEN 'blocked' ELSE o.state END, 'deleted'),
  CASE WHEN o.key_state = 'start' AND o.claim_max IS NOT NULL THEN 1 ELSE 0 END
FROM @keyed AS x
INNER JOIN [qsidecar].qsidecar_keys AS k WITH (FORCESEEK) ON k.queue = x.queue AND k.name = x.name
LEFT JOIN [qsidecar].qsidecar_jobs AS o WITH (FORCESEEK) ON o.id = k.job AND k.state IS NULL
WHERE x.stored = 0
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
