-- Statistics and lists of jobs.

-- name: queues
-- The queues that have a job or are paused. It steps through the names, not through the rows.
-- sets 1
DECLARE @queues TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @queues_last varchar(128) = '';
DECLARE @queues_next varchar(128);
WHILE 1 = 1
BEGIN
  SET @queues_next = NULL;
  SELECT TOP (1) @queues_next = j.queue FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue > @queues_last ORDER BY j.queue
  OPTION (KEEPFIXED PLAN);
  IF @queues_next IS NULL
    BREAK;
  INSERT INTO @queues (queue) VALUES (@queues_next);
  SET @queues_last = @queues_next;
END;
SET @queues_last = '';
WHILE 1 = 1
BEGIN
  SET @queues_next = NULL;
  SELECT TOP (1) @queues_next = j.queue FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_delayed), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.run_at IS NOT NULL AND j.queue > @queues_last ORDER BY j.queue
  OPTION (KEEPFIXED PLAN);
  IF @queues_next IS NULL
    BREAK;
  INSERT INTO @queues (queue) VALUES (@queues_next);
  SET @queues_last = @queues_next;
END;
SET @queues_last = '';
WHILE 1 = 1
BEGIN
  SET @queues_next = NULL;
  SELECT TOP (1) @queues_next = j.queue FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.finished_at IS NOT NULL AND j.queue > @queues_last ORDER BY j.queue
  OPTION (KEEPFIXED PLAN);
  IF @queues_next IS NULL
    BREAK;
  INSERT INTO @queues (queue) VALUES (@queues_next);
  SET @queues_last = @queues_next;
END;
SET @queues_last = '';
WHILE 1 = 1
BEGIN
  SET @queues_next = NULL;
  SELECT TOP (1) @queues_next = j.queue FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue > @queues_last ORDER BY j.queue
  OPTION (KEEPFIXED PLAN);
  IF @queues_next IS NULL
    BREAK;
  INSERT INTO @queues (queue) VALUES (@queues_next);
  SET @queues_last = @queues_next;
END;
SELECT q.queue FROM @queues AS q
UNION
SELECT j.queue FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), READPAST, READCOMMITTEDLOCK) WHERE j.state = 'claimed'
UNION
SELECT p.queue FROM {s}.qsidecar_queues AS p WHERE p.paused = 1
OPTION (KEEPFIXED PLAN);

-- name: stats
-- Counts the jobs of some queues, up to a limit for each state. The oldest ready job is the
-- first of its priority: positions inside a priority have the order in which jobs became
-- ready. The claimed rows, which are as many as workers, are read once for all queues.
-- @stats_queues nvarchar(max)
-- @stats_limit bigint
-- sets 1
DECLARE @stats TABLE (n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, oldest datetime2(6) NULL);
INSERT INTO @stats (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@stats_queues) WITH (n int, queue nvarchar(4000)) AS x;
DECLARE @stats_n int = 0;
DECLARE @stats_queue varchar(128);
DECLARE @stats_priority smallint;
DECLARE @stats_next smallint;
DECLARE @stats_ready datetime2(6);
WHILE 1 = 1
BEGIN
  SELECT @stats_queue = x.queue FROM @stats AS x WHERE x.n = @stats_n;
  IF @@ROWCOUNT = 0
    BREAK;
  SET @stats_priority = 32767;
  WHILE 1 = 1
  BEGIN
    SET @stats_next = NULL;
    SELECT TOP (1) @stats_next = j.priority, @stats_ready = j.ready_at
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @stats_queue AND j.priority <= @stats_priority
    ORDER BY j.priority DESC, j.position
    OPTION (KEEPFIXED PLAN);
    IF @stats_next IS NULL
      BREAK;
    UPDATE @stats SET oldest = @stats_ready WHERE n = @stats_n AND (oldest IS NULL OR oldest > @stats_ready);
    IF @stats_next = -32768
      BREAK;
    SET @stats_priority = @stats_next - 1;
  END;
  SET @stats_n = @stats_n + 1;
END;
DECLARE @stats_claimed TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, jobs bigint NOT NULL, since datetime2(6) NULL);
INSERT INTO @stats_claimed (queue, jobs, since)
SELECT j.queue, COUNT_BIG(*), MIN(j.claimed_at)
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'claimed'
GROUP BY j.queue
OPTION (KEEPFIXED PLAN);
SELECT x.n, @now AS now,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = x.queue) AS c) AS ready,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = x.queue) AS c) AS blocked,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_delayed), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.run_at IS NOT NULL AND j.queue = x.queue) AS c) AS scheduled,
  COALESCE(CASE WHEN y.jobs > @stats_limit THEN @stats_limit ELSE y.jobs END, 0) AS claimed,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.finished_at IS NOT NULL AND j.queue = x.queue AND j.state = 'done') AS c) AS done,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.finished_at IS NOT NULL AND j.queue = x.queue AND j.state = 'dead') AS c) AS dead,
  CASE WHEN EXISTS (SELECT 1 FROM {s}.qsidecar_queues AS q WHERE q.queue = x.queue AND q.paused = 1) THEN 1 ELSE 0 END AS paused,
  y.since AS claimed_at,
  x.oldest
FROM @stats AS x LEFT JOIN @stats_claimed AS y ON y.queue = x.queue
OPTION (KEEPFIXED PLAN);

-- name: count_ready
-- with index: qsidecar_ready
-- with where: j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL
{count}

-- name: count_blocked
-- with index: qsidecar_blocked
-- with where: j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL
{count}

-- name: count_scheduled
-- with index: qsidecar_delayed
-- with where: j.run_at IS NOT NULL
{count}

-- name: count_claimed
-- with index: qsidecar_owned
-- with where: j.state = 'claimed'
{count}

-- name: count_done
-- with index: qsidecar_finished
-- with where: j.finished_at IS NOT NULL AND j.state = 'done'
{count}

-- name: count_dead
-- with index: qsidecar_finished
-- with where: j.finished_at IS NOT NULL AND j.state = 'dead'
{count}

-- fragment: count
-- Counts all jobs of a queue in one state. The conditions are those of a filtered index. The index would not match a parameter
-- instead of a constant.
-- @count_queue varchar(128)
-- sets 1
SELECT COUNT_BIG(*) AS n FROM {s}.qsidecar_jobs AS j WITH (INDEX ({index}), READPAST, READCOMMITTEDLOCK)
WHERE {where} AND j.queue = @count_queue
OPTION (KEEPFIXED PLAN);

-- fragment: shown_state
-- The state of a job as readers see it. A plain INSERT with a run_at leaves the column as it is.
CASE WHEN j.run_at IS NOT NULL THEN 'scheduled' WHEN j.state = 'ready' AND j.group_name IS NOT NULL THEN 'blocked' ELSE j.state END

-- name: place
-- Where a job is in the order of any state.
-- @place_queue varchar(128)
-- @place_id bigint
-- sets 1
SELECT j.priority, j.position, j.run_at, j.claimed_at, j.finished_at, COALESCE(j.group_name, j.admitted_group, N'') AS group_name
FROM {s}.qsidecar_jobs AS j
WHERE j.id = @place_id AND j.queue = @place_queue
OPTION (KEEPFIXED PLAN);

-- name: peek_ready
-- Ready jobs after a position: first those of its priority, then those of lower ones.
-- @peek_queue varchar(128)
-- @peek_priority smallint
-- @peek_position bigint
-- @peek_limit bigint
-- sets 2
DECLARE @peek_left bigint = @peek_limit;
SELECT TOP (@peek_left) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @peek_queue AND j.priority = @peek_priority AND j.position > @peek_position
ORDER BY j.position
OPTION (KEEPFIXED PLAN);
SET @peek_left = @peek_left - @@ROWCOUNT;
SELECT TOP (@peek_left) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @peek_queue AND j.priority < @peek_priority
ORDER BY j.priority DESC, j.position
OPTION (KEEPFIXED PLAN);

-- name: peek_blocked
-- Blocked jobs after a position of a group: first those of its priority, then those of lower ones, then those of the groups that follow.
-- @waiting_queue varchar(128)
-- @waiting_group nvarchar(256)
-- @waiting_priority smallint
-- @waiting_position bigint
-- @waiting_limit bigint
-- sets 3
DECLARE @waiting_left bigint = @waiting_limit;
SELECT TOP (@waiting_left) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @waiting_queue AND j.group_name = @waiting_group
  AND j.priority = @waiting_priority AND j.position > @waiting_position
ORDER BY j.position
OPTION (KEEPFIXED PLAN);
SET @waiting_left = @waiting_left - @@ROWCOUNT;
SELECT TOP (@waiting_left) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @waiting_queue AND j.group_name = @waiting_group
  AND j.priority < @waiting_priority
ORDER BY j.priority DESC, j.position
OPTION (KEEPFIXED PLAN);
SET @waiting_left = @waiting_left - @@ROWCOUNT;
SELECT TOP (@waiting_left) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @waiting_queue AND j.group_name > @waiting_group
ORDER BY j.group_name, j.priority DESC, j.position
OPTION (KEEPFIXED PLAN);

-- name: peek_scheduled
-- Scheduled jobs after a position, in the order in which they are due.
-- @peek_queue varchar(128)
-- @peek_at datetime2(6)
-- @peek_id bigint
-- @peek_limit bigint
-- sets 1
SELECT TOP (@peek_limit) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_delayed), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.run_at IS NOT NULL AND j.queue = @peek_queue
  AND j.run_at >= @peek_at AND (j.run_at > @peek_at OR j.id > @peek_id)
ORDER BY j.run_at, j.id
OPTION (KEEPFIXED PLAN);

-- name: peek_claimed
-- Claimed jobs after a position, the longest claimed first. They are as many as workers and
-- prefetched jobs.
-- @peek_queue varchar(128)
-- @peek_at datetime2(6)
-- @peek_id bigint
-- @peek_limit bigint
-- sets 1
SELECT TOP (@peek_limit) j.id, DATALENGTH(j.payload) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'claimed' AND j.queue = @peek_queue
  AND j.claimed_at >= @peek_at AND (j.claimed_at > @peek_at OR j.id > @peek_id)
ORDER BY j.claimed_at, j.id
OPTION (KEEPFIXED PLAN);

-- name: peek_finished
-- Done or dead jobs after a position, the longest finished first.
-- @peek_queue varchar(128)
-- @peek_at datetime2(6)
-- @peek_id bigint
-- @peek_limit bigint
-- @peek_state varchar(9)
-- sets 1
SELECT TOP (@peek_limit) j.id, DATALENGTH(j.payload) + COALESCE(DATALENGTH(j.result), 0) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.finished_at IS NOT NULL AND j.queue = @peek_queue AND j.state = @peek_state
  AND j.finished_at >= @peek_at AND (j.finished_at > @peek_at OR j.id > @peek_id)
ORDER BY j.finished_at, j.id
OPTION (KEEPFIXED PLAN);

-- name: peek_newest
-- Done or dead jobs before a position, the last finished first.
-- @peek_queue varchar(128)
-- @peek_at datetime2(6)
-- @peek_id bigint
-- @peek_limit bigint
-- @peek_state varchar(9)
-- sets 1
SELECT TOP (@peek_limit) j.id, DATALENGTH(j.payload) + COALESCE(DATALENGTH(j.result), 0) AS size
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.finished_at IS NOT NULL AND j.queue = @peek_queue AND j.state = @peek_state
  AND j.finished_at <= @peek_at AND (j.finished_at < @peek_at OR j.id < @peek_id)
ORDER BY j.finished_at DESC, j.id DESC
OPTION (KEEPFIXED PLAN);

-- name: chosen
-- The sizes of named jobs.
-- @chosen_queue varchar(128)
-- @chosen_ids nvarchar(max)
-- sets 1
DECLARE @chosen TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY);
INSERT INTO @chosen (n, id)
SELECT x.n, x.id FROM OPENJSON(@chosen_ids) WITH (n int, id bigint) AS x;
SELECT j.id, DATALENGTH(j.payload) + COALESCE(DATALENGTH(j.result), 0) AS size
FROM @chosen AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = x.id
WHERE j.queue = @chosen_queue
ORDER BY x.n
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: key_holder
-- The job that has a key.
-- @key_queue varchar(128)
-- @key_name nvarchar(255)
-- sets 1
SELECT k.job
FROM {s}.qsidecar_keys AS k WITH (FORCESEEK)
WHERE k.queue = @key_queue AND k.name = CONVERT(varbinary(510), @key_name);

-- name: view
-- Shows jobs, in the order of the list, then their failures.
-- @view_queue varchar(128)
-- @view_ids nvarchar(max)
-- sets 2
DECLARE @view TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY);
INSERT INTO @view (n, id)
SELECT x.n, x.id FROM OPENJSON(@view_ids) WITH (n int, id bigint) AS x;
SELECT j.id, j.queue, {shown_state} AS state,
  j.payload, j.priority, j.attempts, COALESCE(j.claim_max, j.max_attempts, 0) AS claim_max, j.enqueued_at, j.run_at, j.claimed_at, j.finished_at,
  COALESCE(j.worker, N'') AS worker, COALESCE(j.[key], N'') AS name, COALESCE(j.headers, N'') AS headers, j.result,
  COALESCE(j.progress, 0) AS progress, j.start_before, COALESCE(j.group_name, j.admitted_group, N'') AS group_name
FROM @view AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = x.id
WHERE j.queue = @view_queue
ORDER BY x.n
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT f.job, f.attempt, f.cause, f.message, f.at
FROM @view AS x INNER JOIN {s}.qsidecar_failures AS f WITH (FORCESEEK) ON f.job = x.id
ORDER BY f.job, f.fence
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: claimed_by
-- Rows that a sidecar has claimed, in the order of their ids.
-- @held_host bigint
-- @held_after bigint
-- @held_limit bigint
-- sets 1
SELECT TOP (@held_limit) j.id, j.token_sidecar, j.token_number, j.queue, CASE WHEN j.lease_ms IS NULL THEN 0 ELSE 1 END AS timed
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK)
WHERE j.state = 'claimed' AND j.owner = @held_host AND j.id > @held_after
ORDER BY j.id
OPTION (KEEPFIXED PLAN);
