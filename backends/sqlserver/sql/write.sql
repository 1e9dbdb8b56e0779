-- Statements that store jobs, settle them, and change claimed ones.

-- fragment: unclaimed
-- The assignments that end a claim.
prefetched = 0, token_sidecar = NULL, token_number = NULL, owner = NULL, lease_ms = NULL,
  deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL

-- fragment: row
-- The columns of a claimed row that scanRow reads.
j.id, j.queue, COALESCE(j.[key], N'') AS name, j.priority, j.position, j.fence,
  j.token_sidecar, j.token_number, j.owner, COALESCE(j.lease_ms, 0) AS lease_ms, j.attempts, j.claim_max, j.losses, j.backoff_ms, j.backoff_max_ms,
  j.prefetched, j.prefetch_losses, CASE WHEN j.retention_done_ms IS NULL THEN 0 ELSE 1 END AS kept, CASE WHEN j.worker IS NULL THEN 0 ELSE 1 END AS has_worker,
  COALESCE(j.batch, 0) AS batch, CASE WHEN j.key_state = 'pending' THEN 1 ELSE 0 END AS pending, COALESCE(j.admitted_group, N'') AS admitted_group

-- fragment: limit_left
DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - {ago}

-- fragment: limit_end
-- When the time limit of a claim that continues ends. If the job was prefetched, it begins {ago} milliseconds before now.
CASE WHEN j.due_at IS NOT NULL OR j.deadline IS NULL THEN j.deadline WHEN {limit_left} <= 0 THEN @now ELSE DATEADD(second, CONVERT(int, ({limit_left}) / 1000), DATEADD(millisecond, CONVERT(int, ({limit_left}) % 1000), @now)) END

-- fragment: start_before
-- When a job expires. within_ms counts from when the job is ready first.
CASE WHEN x.within_ms IS NULL THEN x.start_before WHEN x.due >= '9900-01-01' THEN '9999-12-31 23:59:59.999'
  ELSE DATEADD(second, CONVERT(int, x.within_ms / 1000), DATEADD(millisecond, CONVERT(int, x.within_ms % 1000), COALESCE(x.due, @now))) END

-- name: store
-- Stores jobs that have no keys, in the order of their numbers n, from 0 to 999 at most. The
-- blob is all payloads, one after the other.
-- @store_jobs nvarchar(max)
-- @store_blob varbinary(max)
-- sets 1
DECLARE @store_base bigint;
SET @store_base = NEXT VALUE FOR {s}.qsidecar_sequence;
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
INSERT INTO {s}.qsidecar_jobs (id, position, enqueued_at, ready_at, state, queue, priority, max_attempts, timeout_ms, run_at, headers, start_before, on_expiry, retention_dead_ms, retain_ms, group_name, group_noticed, payload)
SELECT @store_base + x.n, @store_base + x.n, @now, @now, CASE WHEN x.due IS NULL THEN 'ready' ELSE 'scheduled' END, x.queue, x.priority, x.max_attempts, x.timeout_ms, x.due, x.headers,
  {start_before}, x.on_expiry, x.dead_ms, x.retain_ms, x.group_name, CASE WHEN x.group_name IS NOT NULL THEN 1 END,
  SUBSTRING(@store_blob, x.start + 1, x.size)
FROM @store AS x;
SET @wrote = @wrote + 1;
SELECT x.n, j.id, CASE WHEN j.run_at IS NULL THEN 1 ELSE 0 END AS ready
FROM @store AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = @store_base + x.n
ORDER BY x.n
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: store_keyed
-- store.sql for jobs some of which have a key, which no two of them share. It answers
-- with all jobs: stored ones with their own id, the others (stored 0) with the first job
-- that has their key, its state, and whether the key is free again since that job was claimed.
-- @keyed_jobs nvarchar(max)
-- @keyed_blob varbinary(max)
-- sets 1
-- Locks the rows of the keys, or the gaps where they will be: of two commits with the same key
-- the second waits for the first. Every commit locks its keys in one order. A key is free if
-- it has expired, and its job has ended or was deleted by hand. The row of a job is read, and
-- perhaps waited for, only if that decides.
DECLARE @keyed_base bigint;
SET @keyed_base = NEXT VALUE FOR {s}.qsidecar_sequence;
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
INNER JOIN {s}.qsidecar_keys AS k WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) ON k.queue = x.queue AND k.name = x.name
LEFT JOIN {s}.qsidecar_jobs AS o WITH (FORCESEEK) ON o.id = k.job AND k.state IS NULL AND k.expires_at <= @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE x SET stored = 0
FROM @keyed AS x INNER JOIN @keyed_known AS f ON f.n = x.n
WHERE f.free = 0;
UPDATE k SET job = @keyed_base + x.n, expires_at = x.until, state = NULL
FROM @keyed AS x
INNER JOIN @keyed_known AS f ON f.n = x.n
INNER JOIN {s}.qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = x.queue AND k.name = x.name
WHERE f.free = 1
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_keys (queue, name, job, expires_at)
SELECT x.queue, x.name, @keyed_base + x.n, x.until
FROM @keyed AS x
WHERE x.name IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @keyed_known AS f WHERE f.n = x.n);
INSERT INTO {s}.qsidecar_jobs (id, position, enqueued_at, ready_at, state, queue, priority, max_attempts, timeout_ms, run_at, [key], key_state, headers, start_before, on_expiry, retention_dead_ms, retain_ms, group_name, group_noticed, payload)
SELECT @keyed_base + x.n, @keyed_base + x.n, @now, @now, CASE WHEN x.due IS NULL THEN 'ready' ELSE 'scheduled' END, x.queue, x.priority, x.max_attempts, x.timeout_ms, x.due, x.[key], x.key_state, x.headers,
  {start_before}, x.on_expiry, x.dead_ms, x.retain_ms, x.group_name, CASE WHEN x.group_name IS NOT NULL THEN 1 END,
  SUBSTRING(@keyed_blob, x.start + 1, x.size)
FROM @keyed AS x
WHERE x.stored = 1;
SET @wrote = @wrote + 1;
SELECT x.n, 1 AS stored, j.id, CASE WHEN j.run_at IS NULL THEN 'ready' ELSE 'scheduled' END AS state, 0 AS freed
FROM @keyed AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = @keyed_base + x.n
WHERE x.stored = 1
UNION ALL
SELECT x.n, 0, k.job, COALESCE(k.state, CASE WHEN o.run_at IS NOT NULL THEN 'scheduled' WHEN o.state = 'ready' AND o.group_name IS NOT NULL THEN 'blocked' ELSE o.state END, 'deleted'),
  CASE WHEN o.key_state = 'start' AND o.claim_max IS NOT NULL THEN 1 ELSE 0 END
FROM @keyed AS x
INNER JOIN {s}.qsidecar_keys AS k WITH (FORCESEEK) ON k.queue = x.queue AND k.name = x.name
LEFT JOIN {s}.qsidecar_jobs AS o WITH (FORCESEEK) ON o.id = k.job AND k.state IS NULL
WHERE x.stored = 0
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: ack
-- Ends claims with success, those of members of batches, of jobs of groups, and of jobs whose keys have pending ones only
-- if @ack_all is 1. The claim's policy decided whether the row is deleted or kept.
-- Failures are deleted a thousand at a time, because a job can have any number of them. It
-- answers with the numbers of the leases that were valid.
--
-- A transaction that stores keys locks a key, then reads its job. So a transaction that has a
-- job never waits for its key (NOWAIT; error 1222), here and in all other statements that
-- change keys: without row versions each would wait for the other.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table
-- @ack_leases nvarchar(max)
-- @ack_blob varbinary(max)
-- @ack_all bigint
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
WHERE j.id = a.id AND j.token_sidecar = a.sidecar AND j.token_number = a.number AND j.retention_done_ms IS NULL AND (j.batch IS NULL AND j.admitted_group IS NULL AND (j.key_state IS NULL OR j.key_state = 'start') OR @ack_all = 1)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF EXISTS (SELECT 1 FROM @ack AS a WHERE NOT EXISTS (SELECT 1 FROM @acked AS d WHERE d.id = a.id))
  UPDATE j SET state = 'done', finished_at = @now,
    prune_at = DATEADD(second, CONVERT(int, j.retention_done_ms / 1000), DATEADD(millisecond, CONVERT(int, j.retention_done_ms % 1000), @now)),
    result = SUBSTRING(@ack_blob, a.start + 1, a.size), attempts = j.attempts + j.prefetched, {unclaimed}
  OUTPUT inserted.id, inserted.state, inserted.[key], inserted.last_error
  INTO @acked
  FROM @ack AS a, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
  WHERE j.id = a.id AND j.token_sidecar = a.sidecar AND j.token_number = a.number AND j.retention_done_ms IS NOT NULL AND (j.batch IS NULL AND j.admitted_group IS NULL AND (j.key_state IS NULL OR j.key_state = 'start') OR @ack_all = 1)
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

-- name: deliver
-- with ago: d.ago_ms
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
  deadline = {limit_end}, due_at = COALESCE(j.due_at, {limit_end})
OUTPUT inserted.id INTO @delivered
FROM @deliver AS d, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = d.id AND j.token_sidecar = d.sidecar AND j.token_number = d.number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @delivered);
SELECT d.n FROM @deliver AS d INNER JOIN @delivered AS y ON y.id = d.id;

-- name: lock
-- Locks the claimed rows among some jobs and shows them. If a queue is given, the jobs
-- must be in it. The cause is always empty.
-- @lock_queue varchar(128)
-- @lock_ids nvarchar(max)
-- sets 1
DECLARE @lock TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @lock (id)
SELECT x.id FROM OPENJSON(@lock_ids) WITH (id bigint) AS x;
SELECT '' AS cause, {row}
FROM @lock AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.state = 'claimed' AND (@lock_queue = '' OR j.queue = @lock_queue)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: find_locked
-- Locks the claimed rows among some jobs, except those that other transactions have locked, and
-- shows the ids of these. The last query reads uncommitted rows, so that it waits for no lock.
-- @find_ids nvarchar(max)
-- sets 1
DECLARE @find TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @find (id)
SELECT x.id FROM OPENJSON(@find_ids) WITH (id bigint) AS x;
DECLARE @find_free TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @find_free (id)
SELECT j.id
FROM @find AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = x.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT j.id
FROM @find AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, READUNCOMMITTED) ON j.id = x.id
WHERE j.state = 'claimed' AND NOT EXISTS (SELECT 1 FROM @find_free AS f WHERE f.id = j.id)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: find_locked_keys
-- Locks the keys of some jobs, except those that other transactions have locked, and shows the
-- jobs of these. The last query reads uncommitted rows, so that it waits for no lock.
-- @find_keys nvarchar(max)
-- sets 1
DECLARE @find_key TABLE (id bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name varbinary(510) NOT NULL);
INSERT INTO @find_key (id, queue, name)
SELECT x.id, x.queue, CONVERT(varbinary(510), x.[key])
FROM OPENJSON(@find_keys) WITH (id bigint, queue nvarchar(4000), [key] nvarchar(4000)) AS x;
DECLARE @find_free_key TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @find_free_key (id)
SELECT x.id
FROM @find_key AS x INNER JOIN {s}.qsidecar_keys AS k WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON k.queue = x.queue AND k.name = x.name
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT x.id
FROM @find_key AS x INNER JOIN {s}.qsidecar_keys AS k WITH (FORCESEEK, READUNCOMMITTED) ON k.queue = x.queue AND k.name = x.name
WHERE NOT EXISTS (SELECT 1 FROM @find_free_key AS f WHERE f.id = x.id)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: end_claims
-- Ends claims without success, whose rows are locked. Ready jobs go behind the others
-- (fresh), or keep their positions (back). It answers with the numbers of the claims that
-- it changed, then with the queues in which jobs kept their positions, and how often that
-- happened there.
-- @ending_claims nvarchar(max)
-- sets 2
DECLARE @ending_base bigint;
SET @ending_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @ending TABLE (
  n int NOT NULL, id bigint NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, keyed tinyint NOT NULL, dead tinyint NOT NULL, wait_ms bigint NULL,
  fresh tinyint NOT NULL, back tinyint NOT NULL, attempts int NOT NULL, losses int NOT NULL, prefetch_losses int NOT NULL, fence bigint NOT NULL,
  cause varchar(16) COLLATE Latin1_General_100_BIN2 NULL, message nvarchar(max) NULL);
INSERT INTO @ending (n, id, sidecar, number, queue, keyed, dead, wait_ms, fresh, back, attempts, losses, prefetch_losses, fence, cause, message)
SELECT x.n, x.id, x.sidecar, x.number, x.queue, x.keyed, x.dead, x.wait_ms, x.fresh, x.back, x.attempts, x.losses, x.prefetch_losses, x.fence, x.cause, x.message
FROM OPENJSON(@ending_claims) WITH (
  n int, id bigint, sidecar bigint, number bigint, queue nvarchar(4000), keyed tinyint, dead tinyint, wait_ms bigint, fresh tinyint, back tinyint,
  attempts int, losses int, prefetch_losses int, fence bigint, cause nvarchar(4000), message nvarchar(max)) AS x;
DECLARE @ended TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = CASE WHEN e.dead = 1 THEN 'dead' WHEN e.wait_ms IS NULL THEN 'ready' ELSE 'scheduled' END,
  attempts = e.attempts, losses = e.losses, prefetch_losses = e.prefetch_losses,
  position = CASE WHEN e.fresh = 1 THEN @ending_base + e.n ELSE j.position END,
  ready_at = CASE WHEN e.fresh = 1 THEN @now ELSE j.ready_at END,
  run_at = DATEADD(second, CONVERT(int, e.wait_ms / 1000), DATEADD(millisecond, CONVERT(int, e.wait_ms % 1000), @now)),
  last_error = CASE WHEN e.cause IS NULL THEN j.last_error ELSE e.message END,
  finished_at = CASE WHEN e.dead = 1 THEN @now END,
  prune_at = CASE WHEN e.dead = 1
    THEN DATEADD(second, CONVERT(int, j.retention_dead_ms / 1000), DATEADD(millisecond, CONVERT(int, j.retention_dead_ms % 1000), @now)) END, {unclaimed}
OUTPUT inserted.id INTO @ended
FROM @ending AS e, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = e.id AND j.token_sidecar = e.sidecar AND j.token_number = e.number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT e.id, e.fence, e.attempts, e.cause, COALESCE(e.message, N''), @now
FROM @ending AS e INNER JOIN @ended AS y ON y.id = e.id
WHERE e.cause IS NOT NULL;
IF EXISTS (SELECT 1 FROM @ending AS e WHERE e.dead = 1 AND e.keyed = 1)
  UPDATE k SET state = 'dead'
  FROM @ending AS e INNER JOIN {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = e.id
  WHERE e.dead = 1 AND e.keyed = 1
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @ending_back TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @ending_back (queue)
SELECT DISTINCT e.queue FROM @ending AS e WHERE e.back = 1;
UPDATE r SET requeues = r.requeues + 1
FROM @ending_back AS b INNER JOIN {s}.qsidecar_requeues AS r WITH (ROWLOCK, FORCESEEK) ON r.queue = b.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_requeues (queue, requeues)
SELECT b.queue, 1
FROM @ending_back AS b
WHERE NOT EXISTS (SELECT 1 FROM {s}.qsidecar_requeues AS r WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE r.queue = b.queue);
SET @wrote = @wrote + 1;
SELECT e.n FROM @ending AS e INNER JOIN @ended AS y ON y.id = e.id;
SELECT b.queue, r.requeues
FROM @ending_back AS b INNER JOIN {s}.qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = b.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: renew_claims
-- with ago: r.ago_ms
-- Writes claims that go on, whose rows are locked. Their workers have the jobs for
-- certain. The end of a timed lease moves if new_due is 1. It answers with the numbers
-- of the claims that it changed.
-- @renewal_claims nvarchar(max)
-- sets 1
DECLARE @renewal TABLE (
  n int NOT NULL, id bigint NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL, attempts int NOT NULL, ago_ms bigint NOT NULL, lease_ms bigint NULL,
  owner bigint NOT NULL, new_due tinyint NOT NULL, ends datetime2(6) NULL, set_worker tinyint NOT NULL, worker nvarchar(400) NULL);
INSERT INTO @renewal (n, id, sidecar, number, attempts, ago_ms, lease_ms, owner, new_due, ends, set_worker, worker)
SELECT x.n, x.id, x.sidecar, x.number, x.attempts, x.ago_ms, x.lease_ms, x.owner, x.new_due,
  DATEADD(second, CONVERT(int, x.lease_ms / 1000), DATEADD(millisecond, CONVERT(int, x.lease_ms % 1000), @now)), x.set_worker, x.worker
FROM OPENJSON(@renewal_claims) WITH (
  n int, id bigint, sidecar bigint, number bigint, attempts int, ago_ms bigint, lease_ms bigint, owner bigint, new_due tinyint, set_worker tinyint,
  worker nvarchar(4000)) AS x;
DECLARE @renewed TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET attempts = r.attempts, prefetched = 0, prefetch_losses = 0, lease_ms = r.lease_ms, owner = r.owner,
  deadline = {limit_end},
  due_at = CASE WHEN r.new_due = 0 THEN COALESCE(j.due_at, {limit_end}) WHEN j.deadline IS NULL OR r.ends < {limit_end} THEN r.ends
    ELSE {limit_end} END,
  worker = CASE WHEN r.set_worker = 1 THEN r.worker ELSE j.worker END
OUTPUT inserted.id INTO @renewed
FROM @renewal AS r, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = r.id AND j.token_sidecar = r.sidecar AND j.token_number = r.number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @renewed);
SELECT r.n FROM @renewal AS r INNER JOIN @renewed AS y ON y.id = r.id;
