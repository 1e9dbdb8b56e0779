-- Statements of an operator's commands.

-- name: retry_ids
-- Retries named dead jobs.
-- @retry_queue varchar(128)
-- @retry_ids nvarchar(max)
-- sets 1
{retry_head}
INSERT INTO @retry (id, n, finished_at, name, [key])
SELECT j.id, x.n, j.finished_at, CASE WHEN j.key_state IS NULL THEN CONVERT(varbinary(510), j.[key]) END, j.[key]
FROM OPENJSON(@retry_ids) WITH (n int, id bigint) AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @retry_queue AND j.state = 'dead'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{retry_tail}

-- name: retry_from
-- Retries some of a queue's dead jobs, after a position.
-- @retry_queue varchar(128)
-- @retry_at datetime2(6)
-- @retry_id bigint
-- @retry_limit bigint
-- sets 1
{retry_head}
INSERT INTO @retry (id, n, finished_at, name, [key])
SELECT r.id, ROW_NUMBER() OVER (ORDER BY r.finished_at, r.id) - 1, r.finished_at, CASE WHEN r.key_state IS NULL THEN CONVERT(varbinary(510), r.[key]) END, r.[key]
FROM (
  SELECT TOP (@retry_limit) j.id, j.finished_at, j.[key], j.key_state
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, UPDLOCK, ROWLOCK)
  WHERE j.finished_at IS NOT NULL AND j.queue = @retry_queue AND j.state = 'dead'
    AND j.finished_at >= @retry_at AND (j.finished_at > @retry_at OR j.id > @retry_id)
  ORDER BY j.finished_at, j.id
) AS r
OPTION (KEEPFIXED PLAN);
{retry_tail}

-- fragment: retry_head
DECLARE @retry_base bigint;
SET @retry_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @retry TABLE (
  id bigint NOT NULL PRIMARY KEY, n int NOT NULL, finished_at datetime2(6) NOT NULL, name varbinary(510) NULL,
  [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, taken tinyint NOT NULL DEFAULT 0);

-- fragment: retry_tail
-- A job whose key another job has by now, or another of these, stays dead.
DECLARE @retry_known TABLE (id bigint NOT NULL PRIMARY KEY, job bigint NOT NULL, held tinyint NOT NULL);
INSERT INTO @retry_known (id, job, held)
SELECT x.id, k.job, CASE WHEN k.job <> x.id AND (k.state IS NULL OR k.expires_at > @now) THEN 1 ELSE 0 END
FROM @retry AS x
INNER JOIN {s}.qsidecar_keys AS k WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK, NOWAIT) ON k.queue = @retry_queue AND k.name = x.name
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE x SET taken = 1
FROM @retry AS x
WHERE EXISTS (SELECT 1 FROM @retry_known AS h WHERE h.id = x.id AND h.held = 1)
  OR EXISTS (SELECT 1 FROM @retry AS o WHERE o.name = x.name AND o.id < x.id);
UPDATE k SET job = x.id, state = NULL, expires_at = CASE WHEN k.job = x.id THEN k.expires_at ELSE @now END
FROM @retry AS x
INNER JOIN @retry_known AS h ON h.id = x.id
INNER JOIN {s}.qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = @retry_queue AND k.name = x.name
WHERE x.taken = 0
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_keys (queue, name, job, expires_at)
SELECT @retry_queue, x.name, x.id, @now
FROM @retry AS x
WHERE x.name IS NOT NULL AND x.taken = 0 AND NOT EXISTS (SELECT 1 FROM @retry_known AS h WHERE h.id = x.id);
DECLARE @retried TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = 'ready', run_at = NULL, position = @retry_base + x.n, ready_at = @now,
  attempts = 0, losses = 0, prefetch_losses = 0, finished_at = NULL, prune_at = NULL, start_before = NULL, group_noticed = NULL
OUTPUT inserted.id INTO @retried
FROM @retry AS x, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id AND x.taken = 0
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
SELECT (SELECT COUNT_BIG(*) FROM @retried AS y) AS retried, (SELECT COUNT_BIG(*) FROM @retry AS x) AS seen,
  (SELECT TOP (1) x.finished_at FROM @retry AS x ORDER BY x.n DESC) AS finished_at,
  (SELECT TOP (1) x.id FROM @retry AS x ORDER BY x.n DESC) AS id;

-- fragment: change_due
DATEADD(second, CONVERT(int, @change_delay / 1000), DATEADD(millisecond, CONVERT(int, @change_delay % 1000), @now))

-- fragment: change_last
DATEADD(second, CONVERT(int, @change_within / 1000), DATEADD(millisecond, CONVERT(int, @change_within % 1000), j.enqueued_at))

-- name: change
-- Changes the priority (if set is 1) or the time of named jobs that wait: to a delay (mode 1), which ends
-- within a time of the enqueue if that is above 0, or to an instant (mode 2). It answers with how many, and how many of them are ready. Those
-- that were ready wait for their groups again. The second set has the groups in which they had slots. A job in its back-off keeps its slot.
-- @change_queue varchar(128)
-- @change_ids nvarchar(max)
-- @change_set bigint
-- @change_priority bigint
-- @change_mode bigint
-- @change_delay bigint
-- @change_within bigint
-- @change_at datetime2(6)
-- sets 2
DECLARE @change_base bigint;
SET @change_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @change TABLE (id bigint NOT NULL PRIMARY KEY, n int NOT NULL, due datetime2(6) NULL, waits tinyint NOT NULL,
  freed nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
INSERT INTO @change (id, n, due, waits, freed)
SELECT j.id, x.n, CASE
    WHEN @change_mode = 1 AND @change_within > 0 AND {change_last} < {change_due} THEN {change_last}
    WHEN @change_mode = 1 THEN {change_due}
    WHEN @change_mode = 2 THEN @change_at
    ELSE j.run_at END,
  CASE WHEN j.group_name IS NOT NULL OR j.admitted_group IS NOT NULL AND j.run_at IS NULL THEN 1 ELSE 0 END,
  CASE WHEN j.run_at IS NULL THEN j.admitted_group END
FROM OPENJSON(@change_ids) WITH (n int, id bigint) AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @change_queue AND j.state IN ('ready', 'scheduled')
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE x SET due = NULL
FROM @change AS x
WHERE x.due <= @now;
DECLARE @changed TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET priority = CASE WHEN @change_set = 1 THEN CONVERT(smallint, @change_priority) ELSE j.priority END,
  state = CASE WHEN x.due IS NULL THEN 'ready' ELSE 'scheduled' END, run_at = x.due,
  position = CASE WHEN x.due IS NULL THEN @change_base + x.n ELSE j.position END,
  ready_at = CASE WHEN x.due IS NULL THEN @now ELSE j.ready_at END,
  group_name = COALESCE(j.group_name, x.freed), admitted_group = CASE WHEN x.freed IS NULL THEN j.admitted_group END, group_noticed = NULL
OUTPUT inserted.id INTO @changed
FROM @change AS x, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @changed);
SELECT (SELECT COUNT_BIG(*) FROM @changed AS y) AS changed, (SELECT COUNT_BIG(*) FROM @change AS x WHERE x.due IS NULL AND x.waits = 0) AS ready;
SELECT DISTINCT @change_queue AS queue, x.freed FROM @change AS x WHERE x.freed IS NOT NULL;

-- name: states
-- Locks named jobs and shows their states and groups, and whether a cancel was the last failure.
-- @states_queue varchar(128)
-- @states_ids nvarchar(max)
-- sets 1
DECLARE @states TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @states (id)
SELECT x.id FROM OPENJSON(@states_ids) WITH (id bigint) AS x;
SELECT j.id, {shown_state} AS state, COALESCE(j.group_name, j.admitted_group, N'') AS group_name, CASE WHEN j.state = 'dead' AND EXISTS (
    SELECT 1 FROM {s}.qsidecar_failures AS f WITH (FORCESEEK) WHERE f.job = j.id AND f.fence = j.fence AND f.cause = 'cancelled') THEN 1 ELSE 0 END AS cancelled
FROM @states AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @states_queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: cancel_waiting
-- Makes ready and scheduled jobs dead. It answers with how many.
-- @cancel_queue varchar(128)
-- @cancel_ids nvarchar(max)
-- @cancel_keep bigint
-- @cancel_message nvarchar(max)
-- sets 1
DECLARE @cancel TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @cancel (id)
SELECT x.id FROM OPENJSON(@cancel_ids) WITH (id bigint) AS x;
DECLARE @cancel_micros bigint = DATEDIFF_BIG(microsecond, '1970-01-01', @now);
DECLARE @cancelled TABLE (id bigint NOT NULL PRIMARY KEY, fence bigint NOT NULL, attempts int NOT NULL,
  [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL);
UPDATE j SET state = 'dead', run_at = NULL, fence = CASE WHEN j.fence >= @cancel_micros THEN j.fence + 1 ELSE @cancel_micros END,
  retention_dead_ms = COALESCE(j.retention_dead_ms, NULLIF(@cancel_keep, 0)), finished_at = @now,
  prune_at = DATEADD(second, CONVERT(int, COALESCE(j.retention_dead_ms, NULLIF(@cancel_keep, 0)) / 1000),
    DATEADD(millisecond, CONVERT(int, COALESCE(j.retention_dead_ms, NULLIF(@cancel_keep, 0)) % 1000), @now)),
  last_error = @cancel_message
OUTPUT inserted.id, inserted.fence, inserted.attempts, inserted.[key] INTO @cancelled
FROM @cancel AS b, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = b.id AND j.queue = @cancel_queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT y.id, y.fence, y.attempts, 'cancelled', @cancel_message, @now
FROM @cancelled AS y;
UPDATE k SET state = 'dead'
FROM @cancelled AS y INNER JOIN {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = y.id
WHERE y.[key] IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @cancelled);
SELECT COUNT_BIG(*) AS cancelled FROM @cancelled AS y;

-- name: note_cancelled
-- Stores for their owners that claims were cancelled.
-- @note_claims nvarchar(max)
-- sets 0
DECLARE @note TABLE (owner bigint NOT NULL, token_sidecar bigint NOT NULL, token_number bigint NOT NULL, PRIMARY KEY (owner, token_sidecar, token_number));
INSERT INTO @note (owner, token_sidecar, token_number)
SELECT x.owner, x.token_sidecar, x.token_number
FROM OPENJSON(@note_claims) WITH (owner bigint, token_sidecar bigint, token_number bigint) AS x;
INSERT INTO {s}.qsidecar_cancelled (owner, token_sidecar, token_number)
SELECT x.owner, x.token_sidecar, x.token_number
FROM @note AS x
WHERE NOT EXISTS (SELECT 1 FROM {s}.qsidecar_cancelled AS c WITH (FORCESEEK)
  WHERE c.owner = x.owner AND c.token_sidecar = x.token_sidecar AND c.token_number = x.token_number)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;

-- name: delete
-- Deletes named jobs, in any state but claimed. It answers with how many, and in which groups they had slots.
-- @delete_queue varchar(128)
-- @delete_ids nvarchar(max)
-- sets 2
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT j.id
FROM OPENJSON(@delete_ids) WITH (id bigint) AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @delete_queue AND j.state <> 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{remove_tail}
{remove_keys}

-- name: purge_ready
-- with index: qsidecar_ready
-- with where: j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL
-- with order: j.priority DESC, j.position
{purge}

-- name: purge_blocked
-- with index: qsidecar_blocked
-- with where: j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL
-- with order: j.group_name, j.priority DESC, j.position
{purge}

-- name: purge_scheduled
-- with index: qsidecar_delayed
-- with where: j.run_at IS NOT NULL
-- with order: j.run_at, j.id
{purge}

-- name: purge_done
-- with index: qsidecar_finished
-- with where: j.finished_at IS NOT NULL AND j.state = 'done'
-- with order: j.finished_at, j.id
{purge}

-- name: purge_dead
-- with index: qsidecar_finished
-- with where: j.finished_at IS NOT NULL AND j.state = 'dead'
-- with order: j.finished_at, j.id
{purge}

-- fragment: purge
-- Deletes some of a queue's jobs in one state. It answers with how many, and in which groups they had slots.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over rows that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @purge_queue varchar(128)
-- @purge_limit bigint
-- sets 2
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT TOP (@purge_limit) r.id
FROM {s}.qsidecar_jobs AS j WITH (INDEX ({index}), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN {s}.qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE {where} AND j.queue = @purge_queue
ORDER BY {order}
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{remove_tail}
{remove_keys}

-- fragment: remove_keys
-- Notes in the keys of deleted jobs that they were deleted. Retention leaves the keys as they are.
UPDATE k SET state = 'deleted'
FROM @pruned AS d INNER JOIN {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = d.id
WHERE d.[key] IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT DISTINCT d.queue, d.admitted_group FROM @pruned AS d WHERE d.admitted_group IS NOT NULL;

-- name: pause
-- Stops claims of a queue by all sidecars.
-- @pause_queue varchar(128)
-- sets 0
UPDATE {s}.qsidecar_queues SET paused = 1 WHERE queue = @pause_queue;
IF @@ROWCOUNT = 0
  INSERT INTO {s}.qsidecar_queues (queue, paused) VALUES (@pause_queue, 1);
SET @wrote = @wrote + 1;

-- name: resume
-- Allows claims of a queue again. It answers with whether a job is ready.
-- @resume_queue varchar(128)
-- sets 1
UPDATE {s}.qsidecar_queues SET paused = 0 WHERE queue = @resume_queue AND paused = 1;
SET @wrote = @wrote + 1;
SELECT CASE WHEN EXISTS (
  SELECT 1 FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @resume_queue) THEN 1 ELSE 0 END AS ready
OPTION (KEEPFIXED PLAN);
