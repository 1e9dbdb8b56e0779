-- Statements of maintenance.

-- name: around
-- Finds what maintenance has to do. An idle sidecar sends only this, every second. With
-- prune it also looks for expired rows, with owners also for claims whose owners are not
-- alive (it steps through the owners, which are as many as sidecars). It passes over locked
-- rows: another transaction changes them. It returns the first due times (keys: also if there
-- are commits of handles that were closed long ago), the owners that are lost, the
-- policies whose segments have a ready job, and how often jobs were given back. With batches it
-- also finds out whether one can possibly end, or be deleted, and with groups whether there
-- are jobs that have groups and are not finished.
-- @around_prune bigint
-- @around_owners bigint
-- @around_schedules bigint
-- @around_batches bigint
-- @around_groups bigint
-- @around_segments nvarchar(max)
-- @around_queues nvarchar(max)
-- @around_sidecar bigint
-- sets 5
SELECT @now AS now,
  (SELECT TOP (1) j.run_at FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), READPAST, READCOMMITTEDLOCK)
    WHERE j.run_at IS NOT NULL ORDER BY j.run_at) AS run_at,
  (SELECT TOP (1) j.due_at FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_due), READPAST, READCOMMITTEDLOCK)
    WHERE j.due_at IS NOT NULL ORDER BY j.due_at) AS due_at,
  (SELECT TOP (1) j.start_before FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_expiring), READPAST, READCOMMITTEDLOCK)
    WHERE j.start_before IS NOT NULL AND j.claimed_at IS NULL AND j.finished_at IS NULL ORDER BY j.start_before) AS expire_at,
  CASE WHEN EXISTS (SELECT 1 FROM {s}.qsidecar_sidecars AS h WITH (READPAST, READCOMMITTEDLOCK) WHERE h.dead = 1) THEN 1 ELSE 0 END AS dead,
  (SELECT TOP (1) j.prune_at FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_prunable), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE @around_prune = 1 AND j.prune_at IS NOT NULL AND j.prune_at <= @now ORDER BY j.prune_at) AS expired,
  COALESCE((SELECT TOP (1) k.expires_at FROM {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_prunable), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE @around_prune = 1 AND k.state IS NOT NULL AND k.expires_at <= @now ORDER BY k.expires_at),
    (SELECT TOP (1) @now FROM {s}.qsidecar_commits AS c WITH (READPAST, READCOMMITTEDLOCK)
    WHERE @around_prune = 1 AND c.at < DATEADD(day, -7, @now))) AS keys,
  (SELECT TOP (1) x.next_at FROM {s}.qsidecar_schedules AS x WITH (INDEX (qsidecar_schedules_next), READPAST, READCOMMITTEDLOCK)
    WHERE x.next_at IS NOT NULL AND x.adopted <= @around_schedules ORDER BY x.next_at) AS fire_at,
  CASE WHEN @around_batches = 1 AND (EXISTS (SELECT 1 FROM {s}.qsidecar_batch_notes AS n WITH (READPAST, READCOMMITTEDLOCK))
    OR EXISTS (SELECT 1 FROM {s}.qsidecar_batches AS b WITH (INDEX (qsidecar_batches_state), FORCESEEK, READPAST, READCOMMITTEDLOCK) WHERE b.state = 'closed')
    OR EXISTS (SELECT 1 FROM {s}.qsidecar_batches AS b WITH (INDEX (qsidecar_batches_state), FORCESEEK, READPAST, READCOMMITTEDLOCK) WHERE b.state = 'cancelling')
    OR EXISTS (SELECT 1 FROM {s}.qsidecar_batches AS b WITH (INDEX (qsidecar_batches_expire), FORCESEEK, READPAST, READCOMMITTEDLOCK)
      WHERE b.expires_at <= DATEDIFF_BIG(millisecond, '1970-01-01', @now))) THEN 1 ELSE 0 END AS batches,
  CASE WHEN @around_groups = 1 AND (EXISTS (SELECT 1 FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
      WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue > '')
    OR EXISTS (SELECT 1 FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
      WHERE j.admitted_group IS NOT NULL AND j.queue > '')) THEN 1 ELSE 0 END AS groups
OPTION (KEEPFIXED PLAN);
DECLARE @around_owner TABLE (owner bigint NOT NULL PRIMARY KEY);
DECLARE @around_last bigint = -9223372036854775808;
DECLARE @around_next bigint = NULL;
IF @around_owners = 1
  SELECT TOP (1) @around_next = j.owner
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'claimed' AND j.owner >= @around_last
  ORDER BY j.owner
  OPTION (KEEPFIXED PLAN);
WHILE @around_next IS NOT NULL
BEGIN
  INSERT INTO @around_owner (owner) VALUES (@around_next);
  SET @around_last = @around_next;
  SET @around_next = NULL;
  SELECT TOP (1) @around_next = j.owner
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'claimed' AND j.owner > @around_last
  ORDER BY j.owner
  OPTION (KEEPFIXED PLAN);
END;
SELECT o.owner FROM @around_owner AS o
WHERE o.owner <> 0 AND NOT EXISTS (SELECT 1 FROM {s}.qsidecar_sidecars AS h WHERE h.sidecar = o.owner AND h.dead = 0);
DECLARE @around_segment TABLE (
  n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, policy int NOT NULL,
  highest smallint NOT NULL, lowest smallint NOT NULL, low bigint NOT NULL, high bigint NOT NULL);
INSERT INTO @around_segment (n, queue, policy, highest, lowest, low, high)
SELECT x.n, x.queue, x.policy, x.highest, x.lowest, x.low, x.high
FROM OPENJSON(@around_segments) WITH (n int, queue nvarchar(4000), policy int, highest smallint, lowest smallint, low bigint, high bigint) AS x;
SELECT x.policy
FROM @around_segment AS x
CROSS APPLY (
  SELECT TOP (1) j.id
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = x.queue AND j.priority = x.highest AND j.position > x.low AND j.position <= x.high
) AS r
WHERE x.highest = x.lowest
UNION ALL
SELECT x.policy
FROM @around_segment AS x
CROSS APPLY (
  SELECT TOP (1) j.id
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = x.queue AND j.priority <= x.highest AND j.priority >= x.lowest
) AS r
WHERE x.highest > x.lowest
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @around_queue TABLE (n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @around_queue (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@around_queues) WITH (n int, queue nvarchar(4000)) AS x;
SELECT x.n, r.requeues
FROM @around_queue AS x INNER JOIN {s}.qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT c.token_sidecar, c.token_number
FROM {s}.qsidecar_cancelled AS c WITH (FORCESEEK)
WHERE c.owner = @around_sidecar
OPTION (KEEPFIXED PLAN);

-- name: cancelled
-- Claims of a sidecar that a cancel ended.
-- @cancelled_owner bigint
-- sets 1
SELECT c.token_sidecar, c.token_number
FROM {s}.qsidecar_cancelled AS c WITH (FORCESEEK)
WHERE c.owner = @cancelled_owner
OPTION (KEEPFIXED PLAN);

-- name: forget_cancelled
-- Deletes what a cancel has stored for a sidecar.
-- @handled_owner bigint
-- @handled_claims nvarchar(max)
-- sets 0
DECLARE @handled TABLE (token_sidecar bigint NOT NULL, token_number bigint NOT NULL, PRIMARY KEY (token_sidecar, token_number));
INSERT INTO @handled (token_sidecar, token_number)
SELECT DISTINCT x.token_sidecar, x.token_number FROM OPENJSON(@handled_claims) WITH (token_sidecar bigint, token_number bigint) AS x;
DELETE c
FROM @handled AS x, {s}.qsidecar_cancelled AS c WITH (ROWLOCK, FORCESEEK)
WHERE c.owner = @handled_owner AND c.token_sidecar = x.token_sidecar AND c.token_number = x.token_number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;

-- name: promote
-- Makes due jobs ready, in the order in which they are due: at most a thousand. It
-- answers with the queue of each, or nothing for a blocked one.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over rows that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @promote_limit bigint
-- sets 1
DECLARE @promote_base bigint;
SET @promote_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @promote TABLE (id bigint NOT NULL PRIMARY KEY, run_at datetime2(6) NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, blocked tinyint NOT NULL);
INSERT INTO @promote (id, run_at, queue, blocked)
SELECT TOP (@promote_limit) r.id, r.run_at, r.queue, CASE WHEN r.group_name IS NULL THEN 0 ELSE 1 END
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN {s}.qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.run_at IS NOT NULL AND j.run_at <= @now AND r.run_at IS NOT NULL
ORDER BY j.run_at, j.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{promote_tail}

-- name: promote_only
-- Makes those of the given jobs ready that are due: at most a thousand. It answers as
-- promote does. It runs only if the database has refused a job.
-- @promote_ids nvarchar(max)
-- sets 1
DECLARE @promote_base bigint;
SET @promote_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @promote_id TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @promote_id (id)
SELECT x.id FROM OPENJSON(@promote_ids) WITH (id bigint) AS x;
DECLARE @promote TABLE (id bigint NOT NULL PRIMARY KEY, run_at datetime2(6) NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, blocked tinyint NOT NULL);
INSERT INTO @promote (id, run_at, queue, blocked)
SELECT j.id, j.run_at, j.queue, CASE WHEN j.group_name IS NULL THEN 0 ELSE 1 END
FROM @promote_id AS o
INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = o.id
WHERE j.run_at IS NOT NULL AND j.run_at <= @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{promote_tail}

-- fragment: promote_tail
DECLARE @promoted TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = 'ready', run_at = NULL, ready_at = @now, position = @promote_base + p.n, group_noticed = NULL
OUTPUT inserted.id INTO @promoted
FROM (SELECT x.id, ROW_NUMBER() OVER (ORDER BY x.run_at, x.id) - 1 AS n FROM @promote AS x) AS p,
  {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = p.id AND j.run_at IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @promoted);
SELECT CASE WHEN p.blocked = 1 THEN '' ELSE p.queue END AS queue FROM @promote AS p INNER JOIN @promoted AS y ON y.id = p.id;

-- name: lock_expired
-- Locks waiting jobs whose time to start is over, in the order of these times.
-- @late_limit bigint
-- sets 1
SELECT TOP (@late_limit) j.id, j.queue, CASE WHEN j.on_expiry = 'delete' THEN 1 ELSE 0 END AS removed
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_expiring), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.start_before IS NOT NULL AND j.claimed_at IS NULL AND j.finished_at IS NULL AND j.start_before <= @now
ORDER BY j.start_before
OPTION (KEEPFIXED PLAN);

-- name: lock_expired_only
-- The same for given jobs. It runs only if the database has refused a job.
-- @late_ids nvarchar(max)
-- sets 1
DECLARE @late TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @late (id)
SELECT x.id FROM OPENJSON(@late_ids) WITH (id bigint) AS x;
SELECT j.id, j.queue, CASE WHEN j.on_expiry = 'delete' THEN 1 ELSE 0 END AS removed
FROM @late AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = x.id
WHERE j.claimed_at IS NULL AND j.finished_at IS NULL AND j.start_before <= @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: find_scheduled
-- Finds scheduled jobs that are due, in their order. It runs only if the database has
-- refused a job.
-- @find_limit bigint
-- sets 1
SELECT TOP (@find_limit) j.id, j.queue
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.run_at IS NOT NULL AND j.run_at <= @now
ORDER BY j.run_at, j.id
OPTION (KEEPFIXED PLAN);

-- name: find_expired
-- Finds expired finished jobs. It runs only if the database has refused to delete a job.
-- @find_limit bigint
-- sets 1
SELECT TOP (@find_limit) j.id, j.queue
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_prunable), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.prune_at IS NOT NULL AND j.prune_at <= @now
ORDER BY j.prune_at
OPTION (KEEPFIXED PLAN);

-- name: lock_due
-- Locks claims whose timed lease ended or whose run is over its deadline, and shows
-- them.
-- @due_limit bigint
-- sets 1
SELECT TOP (@due_limit) CASE WHEN j.deadline <= j.due_at THEN 'timed_out' ELSE 'lease_ended' END AS cause, {row}
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_due), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.due_at IS NOT NULL AND j.due_at <= @now
ORDER BY j.due_at
OPTION (KEEPFIXED PLAN);

-- name: lock_lost
-- Locks claims of owners that are not alive, and shows them. The last set counts the rows.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over rows that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @lost_owners nvarchar(max)
-- @lost_limit bigint
-- sets 2
DECLARE @lost_owner TABLE (owner bigint NOT NULL PRIMARY KEY);
INSERT INTO @lost_owner (owner)
SELECT x.owner FROM OPENJSON(@lost_owners) WITH (owner bigint) AS x;
DECLARE @lost TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @lost (id)
SELECT TOP (@lost_limit) r.id
FROM @lost_owner AS o
INNER JOIN {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.owner = o.owner
INNER JOIN {s}.qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT 'sidecar_lost' AS cause, {row}
FROM @lost AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT COUNT_BIG(*) AS found FROM @lost AS x;

-- name: mark_dead
-- Marks suspects dead that have sent no heartbeat since.
-- @suspects nvarchar(max)
-- sets 0
DECLARE @suspect TABLE (sidecar bigint NOT NULL PRIMARY KEY, heartbeats bigint NOT NULL, lease_ms bigint NOT NULL);
INSERT INTO @suspect (sidecar, heartbeats, lease_ms)
SELECT x.sidecar, x.heartbeats, x.lease_ms FROM OPENJSON(@suspects) WITH (sidecar bigint, heartbeats bigint, lease_ms bigint) AS x;
UPDATE h SET dead = 1
FROM @suspect AS x INNER JOIN {s}.qsidecar_sidecars AS h WITH (ROWLOCK, FORCESEEK) ON h.sidecar = x.sidecar
WHERE h.heartbeats = x.heartbeats AND h.dead = 0 AND (h.expires_at <= @now OR h.has_left = 0
  AND h.expires_at > DATEADD(second, CONVERT(int, x.lease_ms / 1000), DATEADD(millisecond, CONVERT(int, x.lease_ms % 1000), @now)))
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;

-- name: forget
-- Deletes the rows of dead sidecars that own no job.
-- sets 0
DELETE h
FROM {s}.qsidecar_sidecars AS h WITH (ROWLOCK)
WHERE h.dead = 1 AND NOT EXISTS (
  SELECT 1 FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK) WHERE j.state = 'claimed' AND j.owner = h.sidecar)
OPTION (LOOP JOIN, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
DELETE c
FROM {s}.qsidecar_cancelled AS c WITH (ROWLOCK)
WHERE NOT EXISTS (SELECT 1 FROM {s}.qsidecar_sidecars AS h WITH (FORCESEEK) WHERE h.sidecar = c.owner AND h.dead = 0)
OPTION (LOOP JOIN, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;

-- name: prune_jobs
-- Deletes expired finished jobs. It answers with how many.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over rows that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @prune_limit bigint
-- sets 1
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT TOP (@prune_limit) r.id
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_prunable), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN {s}.qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.prune_at IS NOT NULL AND j.prune_at <= @now
ORDER BY j.prune_at
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{remove_tail}

-- name: prune_only
-- Deletes those of the given jobs that are finished and expired. It answers with how many.
-- It runs only if the database has refused to delete a job.
-- @prune_ids nvarchar(max)
-- sets 1
DECLARE @prune_id TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune_id (id)
SELECT x.id FROM OPENJSON(@prune_ids) WITH (id bigint) AS x;
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT j.id
FROM @prune_id AS o
INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = o.id
WHERE j.prune_at IS NOT NULL AND j.prune_at <= @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{remove_tail}

-- name: prune_keys
-- Deletes expired keys, and the commits of handles that were closed long ago. It answers with
-- how many keys.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over keys that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @prune_limit bigint
-- sets 1
DECLARE @prune_key TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name varbinary(510) NOT NULL, PRIMARY KEY (queue, name));
INSERT INTO @prune_key (queue, name)
SELECT TOP (@prune_limit) r.queue, r.name
FROM {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_prunable), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN {s}.qsidecar_keys AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.queue = k.queue AND r.name = k.name
WHERE k.state IS NOT NULL AND k.expires_at <= @now
ORDER BY k.expires_at
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DELETE k
FROM @prune_key AS x INNER JOIN {s}.qsidecar_keys AS k WITH (ROWLOCK, FORCESEEK) ON k.queue = x.queue AND k.name = x.name
WHERE k.state IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @prune_gone bigint = @@ROWCOUNT;
DECLARE @prune_commit TABLE (handle bigint NOT NULL, pipeline int NOT NULL, PRIMARY KEY (handle, pipeline));
INSERT INTO @prune_commit (handle, pipeline)
SELECT TOP (100) c.handle, c.pipeline
FROM {s}.qsidecar_commits AS c WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE c.at < DATEADD(day, -7, @now);
DELETE c
FROM @prune_commit AS x INNER JOIN {s}.qsidecar_commits AS c WITH (ROWLOCK, FORCESEEK) ON c.handle = x.handle AND c.pipeline = x.pipeline
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
SELECT @prune_gone AS gone;

-- fragment: remove_tail
DECLARE @pruned TABLE (id bigint NOT NULL PRIMARY KEY, [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL, last_error nvarchar(max) NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
  admitted_group nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
DELETE j
OUTPUT deleted.id, deleted.[key], deleted.last_error, deleted.queue, deleted.group_name, deleted.admitted_group INTO @pruned
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
