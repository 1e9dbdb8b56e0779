-- parameters: @store_jobs nvarchar(max), @store_blob varbinary(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @store_base bigint;
SET @store_base = NEXT VALUE FOR [qsidecar].qsidecar_sequence;
DECLARE @store TABLE (
  n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, priority smallint NOT NULL, due datetime2(6) NULL,
  max_attempts smallint NULL, timeout_ms bigint NULL, headers nvarchar(max) NULL, start bigint NOT NULL, size bigint NOT NULL,
  start_before datetime2(6) NULL, within_ms bigint NULL, on_expiry varchar(6) COLLATE Latin1_General_100_BIN2 NULL, dead_ms bigint NULL, retain_ms bigint NULL,
  group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
INSERT INTO @store (n, queue, priority, due, max_attempts, timeout_ms, headers, start, size, start_before, within_ms, on_expiry, dead_ms, retain_ms, group_name)
SELECT x.n, x.queue, x.priority, CASE
    WHEN x.delay_ms > 0 THEN DATEADD(second, CONVERT(int, x.delay_ms / 1000), DATEADD(millisecond, CONVERT(int, x.delay_ms % 1000), @now))
    WHEN x.run_at > @now THEN x.run_at END,
  x.max_attempts, x.timeout_ms, x.headers, x.start, x.size, x.start_before, x.within_ms, x.on_expiry, x.dead_ms, x.retain_ms, x.group_name
FROM OPENJSON(@store_jobs) WITH (
  n int, queue nvarchar(4000), priority smallint, delay_ms bigint, run_at datetime2(6), max_attempts smallint, timeout_ms bigint,
  headers nvarchar(max), start bigint, size bigint, start_before datetime2(6), within_ms bigint, on_expiry nvarchar(4000), dead_ms bigint, retain_ms bigint, group_name nvarchar(4000)) AS x;
INSERT INTO [qsidecar].qsidecar_jobs (id, position, enqueued_at, ready_at, state, queue, priority, max_attempts, timeout_ms, run_at, headers, start_before, on_expiry, retention_dead_ms, retain_ms, group_name, group_noticed, payload)
SELECT @store_base + x.n, @store_base + x.n, @now, @now, CASE WHEN x.due IS NULL THEN 'ready' ELSE 'scheduled' END, x.queue, x.priority, x.max_attempts, x.timeout_ms, x.due, x.headers,
  CASE WHEN x.within_ms IS NULL THEN x.start_before WHEN x.due >= '9900-01-01' THEN '9999-12-31 23:59:59.999'
  ELSE DATEADD(second, CONVERT(int, x.within_ms / 1000), DATEADD(millisecond, CONVERT(int, x.within_ms % 1000), COALESCE(x.due, @now))) END, x.on_expiry, x.dead_ms, x.retain_ms, x.group_name, CASE WHEN x.group_name IS NOT NULL THEN 1 END,
  SUBSTRING(@store_blob, x.start + 1, x.size)
FROM @store AS x;
SET @wrote = @wrote + 1;
SELECT x.n, j.id, CASE WHEN j.run_at IS NULL THEN 1 ELSE 0 END AS ready
FROM @store AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = @store_base + x.n
ORDER BY x.n
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
