-- Statements of claims from queues with limits. backends/internal/core/gates.go describes them.

-- name: lock_gates
-- Locks and writes the gates of queues, in the order of their names. The sidecar sends it before the statements that count: these
-- then see what the transactions committed that had the locks.
-- @gate_queues nvarchar(max)
-- sets 0
DECLARE @gate TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @gate (queue)
SELECT x.queue FROM OPENJSON(@gate_queues) WITH (n int, queue nvarchar(4000)) AS x;
UPDATE g SET passes = g.passes + 1
FROM (SELECT TOP (1000) y.queue FROM @gate AS y ORDER BY y.queue) AS x, {s}.qsidecar_gates AS g WITH (ROWLOCK, FORCESEEK)
WHERE g.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_gates (queue, passes, next_at)
SELECT x.queue, 1, 0
FROM @gate AS x
WHERE NOT EXISTS (SELECT 1 FROM {s}.qsidecar_gates AS g WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE g.queue = x.queue);
SET @wrote = @wrote + 1;

-- name: read_gates
-- Reads the gates that the transaction has locked. If the limits of a queue changed lately, it first enters all claimed jobs of the
-- queue. It deletes the rows of jobs that are no longer claimed. Without row versions it waits for transactions that have changed
-- one of these jobs: a row that is passed over could be claimed, or not.
-- @gates_queues nvarchar(max)
-- @gates_settles bigint
-- sets 1
DECLARE @gates TABLE (n int NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @gates (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@gates_queues) WITH (n int, queue nvarchar(4000)) AS x;
DECLARE @gates_changed TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @gates_changed (queue)
SELECT x.queue
FROM @gates AS x INNER JOIN {s}.qsidecar_queues AS q WITH (FORCESEEK) ON q.queue = x.queue
WHERE q.max_claimed IS NOT NULL AND DATEADD(millisecond, CONVERT(int, @gates_settles), q.limits_at) > @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF EXISTS (SELECT 1 FROM @gates_changed AS x)
  INSERT INTO {s}.qsidecar_capped (queue, job)
  SELECT j.queue, j.id
  FROM @gates_changed AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned)) ON j.queue = x.queue
  WHERE j.state = 'claimed' AND NOT EXISTS (SELECT 1 FROM {s}.qsidecar_capped AS c WITH (FORCESEEK) WHERE c.queue = j.queue AND c.job = j.id)
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @gates_ended TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, job bigint NOT NULL, PRIMARY KEY (queue, job));
INSERT INTO @gates_ended (queue, job)
SELECT c.queue, c.job
FROM @gates AS x
INNER JOIN {s}.qsidecar_capped AS c WITH (FORCESEEK) ON c.queue = x.queue
LEFT JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = c.job AND j.state = 'claimed'
WHERE j.id IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DELETE c
FROM @gates_ended AS x, {s}.qsidecar_capped AS c WITH (ROWLOCK, FORCESEEK)
WHERE c.queue = x.queue AND c.job = x.job
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT x.n, COALESCE(q.max_claimed, 0) AS max_claimed, COALESCE(q.rate, 0) AS rate, COALESCE(q.rate_ms, 0) AS rate_ms, COALESCE(q.burst, 0) AS burst,
  (SELECT COUNT_BIG(*) FROM {s}.qsidecar_capped AS c WITH (FORCESEEK) WHERE c.queue = x.queue) AS claimed, {now_ns} AS now_ns, g.next_at
FROM @gates AS x
INNER JOIN {s}.qsidecar_gates AS g WITH (FORCESEEK) ON g.queue = x.queue
LEFT JOIN {s}.qsidecar_queues AS q WITH (FORCESEEK) ON q.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- fragment: now_ns
-- The time in nanoseconds since 1970.
DATEDIFF_BIG(microsecond, '1970-01-01', @now) * 1000

-- name: pass_gate
-- Writes how far a claim used up the rate, if rate is 1, and enters the jobs that it claimed. Gate.Next and Gate.Advance in
-- backends/limits.go return the numbers.
-- @pass_queue varchar(128)
-- @pass_rate bigint
-- @pass_next bigint
-- @pass_advance bigint
-- @pass_jobs nvarchar(max)
-- sets 0
IF @pass_rate = 1
  UPDATE {s}.qsidecar_gates SET next_at = CASE WHEN @pass_next > {now_ns} THEN @pass_next ELSE {now_ns} END + @pass_advance WHERE queue = @pass_queue;
DECLARE @pass TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @pass (id)
SELECT x.id FROM OPENJSON(@pass_jobs) WITH (id bigint) AS x;
INSERT INTO {s}.qsidecar_capped (queue, job)
SELECT @pass_queue, x.id
FROM @pass AS x
WHERE NOT EXISTS (SELECT 1 FROM {s}.qsidecar_capped AS c WITH (FORCESEEK) WHERE c.queue = @pass_queue AND c.job = x.id)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;

-- fragment: limits
COALESCE(q.max_claimed, 0) AS max_claimed, COALESCE(q.rate, 0) AS rate, COALESCE(q.rate_ms, 0) AS rate_ms, COALESCE(q.burst, 0) AS burst,
  COALESCE(q.group_limit, 0) AS group_limit, COALESCE(q.group_skips, 0) AS group_skips, COALESCE(q.group_ready, 0) AS group_ready

-- name: lock_limits
-- Locks the limits of a queue, and shows them.
-- @limited_queue varchar(128)
-- sets 1
UPDATE {s}.qsidecar_queues SET paused = paused WHERE queue = @limited_queue;
IF @@ROWCOUNT = 0
  INSERT INTO {s}.qsidecar_queues (queue, paused) VALUES (@limited_queue, 0);
SET @wrote = @wrote + 1;
SELECT {limits} FROM {s}.qsidecar_queues AS q WHERE q.queue = @limited_queue;

-- name: set_limits
-- Stores the limits of a queue. 0 stands for no limit. It answers with whether a job is ready.
-- @limit_queue varchar(128)
-- @limit_claimed bigint
-- @limit_rate bigint
-- @limit_rate_ms bigint
-- @limit_burst bigint
-- @limit_group bigint
-- @limit_skips bigint
-- @limit_ready bigint
-- sets 1
UPDATE {s}.qsidecar_queues SET max_claimed = NULLIF(@limit_claimed, 0), rate = NULLIF(@limit_rate, 0), rate_ms = NULLIF(@limit_rate_ms, 0),
  burst = NULLIF(@limit_burst, 0), group_limit = NULLIF(@limit_group, 0), group_skips = NULLIF(CONVERT(tinyint, @limit_skips), 0),
  group_ready = NULLIF(@limit_ready, 0), limits_at = @now
WHERE queue = @limit_queue;
SET @wrote = @wrote + 1;
SELECT CASE WHEN EXISTS (
  SELECT 1 FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @limit_queue) THEN 1 ELSE 0 END AS ready
OPTION (KEEPFIXED PLAN);

-- name: all_limits
-- The limits of all queues that have some.
-- sets 1
SELECT {limits}, q.queue
FROM {s}.qsidecar_queues AS q
WHERE q.max_claimed IS NOT NULL OR q.rate IS NOT NULL OR q.group_limit IS NOT NULL OR q.group_skips IS NOT NULL OR q.group_ready IS NOT NULL
ORDER BY q.queue;
