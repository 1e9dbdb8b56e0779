-- Stores jobs that have no keys, in the order of their numbers n, from 0 to 999 at most. The
-- blob is all payloads, one after the other.
-- @store_jobs nvarchar(max)
-- @store_blob varbinary(max)
-- sets 1
DECLARE @store_base bigint;
SET @store_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @store TABLE (
  n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, priority smallint NOT NULL, due datetime2(6) NULL,
  max_attempts smallint NULL, timeout_ms bigint NULL, headers nvarchar(max) NULL, start bigint NOT NULL, size bigint NOT NULL);
INSERT INTO @store (n, queue, priority, due, max_attempts, timeout_ms, headers, start, size)
SELECT x.n, x.queue, x.priority, CASE
    WHEN x.delay_ms > 0 THEN DATEADD(second, CONVERT(int, x.delay_ms / 1000), DATEADD(millisecond, CONVERT(int, x.delay_ms % 1000), @now))
    WHEN x.run_at > @now THEN x.run_at END,
  x.max_attempts, x.timeout_ms, x.headers, x.start, x.size
FROM OPENJSON(@store_jobs) WITH (
  n int, queue nvarchar(4000), priority smallint, delay_ms bigint, run_at datetime2(6), max_attempts smallint, timeout_ms bigint,
  headers nvarchar(max), start bigint, size bigint) AS x;
INSERT INTO {s}.qsidecar_jobs (id, position, enqueued_at, ready_at, state, queue, priority, max_attempts, timeout_ms, run_at, headers, payload)
SELECT @store_base + x.n, @store_base + x.n, @now, @now, CASE WHEN x.due IS NULL THEN 'ready' ELSE 'scheduled' END, x.queue, x.priority, x.max_attempts, x.timeout_ms, x.due, x.headers,
  SUBSTRING(@store_blob, x.start + 1, x.size)
FROM @store AS x;
SET @wrote = @wrote + 1;
SELECT x.n, j.id, CASE WHEN j.run_at IS NULL THEN 1 ELSE 0 END AS ready
FROM @store AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = @store_base + x.n
ORDER BY x.n
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
