-- Statements that claim jobs.

-- name: claim
-- with claimable: {ready_of_queue}
{claim_oldest}

-- name: claim_except
-- with claimable: {ready_of_queue} AND NOT EXISTS (SELECT 1 FROM @claim_except AS e WHERE e.id = j.id)
{read_except}
{claim_oldest}

-- fragment: claim_oldest
-- A claim, oldest first. Its segments are pieces of the index of ready jobs, in the order in
-- which they are read. A segment is a part of one priority, after a position up to another
-- (highest = lowest), or all of some priorities. Each is one scan in the index's own order.
-- TOP stops the scan, and the locking, at the last row that is needed. Without OPTIMIZE FOR
-- the server plans a variable TOP for a hundred rows, and can lock more rows than it returns.
-- The locks keep other claims away. For a server without such hints the UPDATE checks the
-- state again.
{claim_head}
WHILE @claim_left > 0
BEGIN
  SELECT @claim_queue = x.queue, @claim_policy_n = x.policy, @claim_highest = x.highest, @claim_lowest = x.lowest, @claim_low = x.low, @claim_high = x.high
  FROM @claim_segment AS x WHERE x.n = @claim_n;
  IF @@ROWCOUNT = 0
    BREAK;
  IF EXISTS (SELECT 1 FROM {s}.qsidecar_queues AS q WHERE q.queue = @claim_queue AND q.paused = 1)
  BEGIN
    SET @claim_n = @claim_n + 1;
    CONTINUE;
  END;
  IF @claim_highest = @claim_lowest
    INSERT INTO @claim_picked (id, segment, policy, priority, place, size)
    SELECT TOP (@claim_left) j.id, @claim_n, @claim_policy_n, j.priority, j.position, {size}
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE {claimable} AND j.priority = @claim_highest
      AND j.position > @claim_low AND j.position <= @claim_high
    ORDER BY j.position
    OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN);
  ELSE
    INSERT INTO @claim_picked (id, segment, policy, priority, place, size)
    SELECT TOP (@claim_left) j.id, @claim_n, @claim_policy_n, j.priority, j.position, {size}
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE {claimable} AND j.priority <= @claim_highest AND j.priority >= @claim_lowest
    ORDER BY j.priority DESC, j.position
    OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN);
  SET @claim_left = @claim_left - @@ROWCOUNT;
  SET @claim_n = @claim_n + 1;
END;
{claim_tail}

-- name: claim_newest
-- with claimable: {ready_of_queue}
{claim_priorities}

-- name: claim_newest_except
-- with claimable: {ready_of_queue} AND NOT EXISTS (SELECT 1 FROM @claim_except AS e WHERE e.id = j.id)
{read_except}
{claim_priorities}

-- fragment: claim_priorities
-- A claim, newest first. It reads one priority after the other, because one scan of an index
-- has one direction. Its segments are whole queues.
{claim_head}
DECLARE @claim_next smallint;
WHILE @claim_left > 0
BEGIN
  SELECT @claim_queue = x.queue, @claim_policy_n = x.policy, @claim_highest = x.highest, @claim_lowest = x.lowest, @claim_low = x.low, @claim_high = x.high
  FROM @claim_segment AS x WHERE x.n = @claim_n;
  IF @@ROWCOUNT = 0
    BREAK;
  IF EXISTS (SELECT 1 FROM {s}.qsidecar_queues AS q WHERE q.queue = @claim_queue AND q.paused = 1)
  BEGIN
    SET @claim_n = @claim_n + 1;
    CONTINUE;
  END;
  WHILE @claim_left > 0
  BEGIN
    SET @claim_next = NULL;
    SELECT TOP (1) @claim_next = j.priority
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE {claimable} AND j.priority <= @claim_highest
    ORDER BY j.priority DESC, j.position
    OPTION (KEEPFIXED PLAN);
    IF @claim_next IS NULL
      BREAK;
    INSERT INTO @claim_picked (id, segment, policy, priority, place, size)
    SELECT TOP (@claim_left) j.id, @claim_n, @claim_policy_n, j.priority, -j.position, {size}
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE {claimable} AND j.priority = @claim_next
    ORDER BY j.position DESC
    OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN);
    SET @claim_left = @claim_left - @@ROWCOUNT;
    IF @claim_next = -32768
      BREAK;
    SET @claim_highest = @claim_next - 1;
  END;
  SET @claim_n = @claim_n + 1;
END;
{claim_tail}

-- fragment: ready_of_queue
j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @claim_queue

-- fragment: size
-- An expired row is larger than any that a claim returns (core.SizeExpired).
CASE WHEN j.start_before <= @now THEN CONVERT(bigint, CASE WHEN j.on_expiry = 'delete' THEN 9223372036854775806 ELSE 9223372036854775807 END) ELSE DATALENGTH(j.payload) END

-- fragment: start_within
-- How many milliseconds are left until the job must not start any more; 0: there is no limit.
CASE WHEN j.start_before IS NULL THEN 0 WHEN DATEDIFF_BIG(microsecond, @now, j.start_before) < 1000 THEN 1 ELSE DATEDIFF_BIG(microsecond, @now, j.start_before) / 1000 END

-- fragment: read_except
-- The rows that the database refuses to change, which a claim leaves out.
-- @claim_refused nvarchar(max)
DECLARE @claim_except TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @claim_except (id) SELECT x.id FROM OPENJSON(@claim_refused) WITH (id bigint) AS x;

-- fragment: claim_head
-- The beginning of every claim: its arguments.
-- @claim_max bigint
-- @claim_bytes bigint
-- @claim_payload bigint
-- @claim_host bigint
-- @claim_first bigint
-- @claim_segments nvarchar(max)
-- @claim_policies nvarchar(max)
-- @claim_slots nvarchar(max)
-- sets 2
DECLARE @claim_segment TABLE (
  n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, policy int NOT NULL,
  highest smallint NOT NULL, lowest smallint NOT NULL, low bigint NOT NULL, high bigint NOT NULL);
INSERT INTO @claim_segment (n, queue, policy, highest, lowest, low, high)
SELECT x.n, x.queue, x.policy, x.highest, x.lowest, x.low, x.high
FROM OPENJSON(@claim_segments) WITH (n int, queue nvarchar(4000), policy int, highest smallint, lowest smallint, low bigint, high bigint) AS x;
DECLARE @claim_picked TABLE (
  id bigint NOT NULL PRIMARY KEY, segment int NOT NULL, policy int NOT NULL, priority smallint NOT NULL, place bigint NOT NULL, size bigint NOT NULL);
DECLARE @claim_left bigint = @claim_max;
DECLARE @claim_n int = 1;
DECLARE @claim_queue varchar(128);
DECLARE @claim_policy_n int;
DECLARE @claim_highest smallint;
DECLARE @claim_lowest smallint;
DECLARE @claim_low bigint;
DECLARE @claim_high bigint;

-- fragment: alone
-- The condition for backends.Job.Alone.
j.losses > 0 AND j.attempts + 1 >= COALESCE(j.max_attempts, p.max_attempts) AND s.lease_ms IS NULL

-- fragment: uncounted
-- Whether the delivery does not count yet.
CASE WHEN (s.prefetched = 1 OR {alone}) AND j.prefetch_losses < COALESCE(j.max_attempts, p.max_attempts) THEN 1 ELSE 0 END

-- fragment: deadline
DATEADD(second, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) / 1000), DATEADD(millisecond, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) % 1000), @now))

-- fragment: claim_tail
-- The end of every claim. The i-th row that fits belongs to the i-th slot. Rows that are too
-- large, or that exceed the limit of bytes, stay locked and unchanged. It answers with the
-- claimed rows, then with the other locked rows (policy 0: how many were to be claimed).
DECLARE @claim_slot TABLE (
  slot int NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL, lease_ms bigint NULL, ends datetime2(6) NULL,
  worker nvarchar(400) NULL, prefetched tinyint NOT NULL);
INSERT INTO @claim_slot (slot, sidecar, number, lease_ms, ends, worker, prefetched)
SELECT x.slot, x.sidecar, x.number, x.lease_ms,
  DATEADD(second, CONVERT(int, x.lease_ms / 1000), DATEADD(millisecond, CONVERT(int, x.lease_ms % 1000), @now)), x.worker, x.prefetched
FROM OPENJSON(@claim_slots) WITH (slot int, sidecar bigint, number bigint, lease_ms bigint, worker nvarchar(4000), prefetched tinyint) AS x;
DECLARE @claim_policy TABLE (
  policy int NOT NULL PRIMARY KEY, max_attempts int NOT NULL, timeout_ms bigint NULL, backoff_ms bigint NOT NULL, backoff_max_ms bigint NOT NULL,
  retention_done_ms bigint NULL, retention_dead_ms bigint NULL);
INSERT INTO @claim_policy (policy, max_attempts, timeout_ms, backoff_ms, backoff_max_ms, retention_done_ms, retention_dead_ms)
SELECT x.policy, x.max_attempts, x.timeout_ms, x.backoff_ms, x.backoff_max_ms, x.retention_done_ms, x.retention_dead_ms
FROM OPENJSON(@claim_policies) WITH (
  policy int, max_attempts int, timeout_ms bigint, backoff_ms bigint, backoff_max_ms bigint, retention_done_ms bigint, retention_dead_ms bigint) AS x;
DECLARE @claim_micros bigint = DATEDIFF_BIG(microsecond, '1970-01-01', @now);
DECLARE @claim_chosen TABLE (id bigint NOT NULL PRIMARY KEY, slot int NOT NULL, policy int NOT NULL);
INSERT INTO @claim_chosen (id, slot, policy)
SELECT w.id, w.slot, w.policy
FROM (
  SELECT p.id, p.policy, p.size,
    SUM(CASE WHEN p.size <= @claim_payload THEN p.size ELSE 0 END) OVER (ORDER BY p.segment, p.priority DESC, p.place ROWS UNBOUNDED PRECEDING) AS total,
    SUM(CASE WHEN p.size <= @claim_payload THEN 1 ELSE 0 END) OVER (ORDER BY p.segment, p.priority DESC, p.place ROWS UNBOUNDED PRECEDING) AS slot
  FROM @claim_picked AS p
) AS w
WHERE w.size <= @claim_payload AND (w.total <= @claim_bytes OR (w.slot = 1 AND @claim_first = 1));
DECLARE @claim_taken TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = 'claimed', owner = @claim_host, claimed_at = @now,
  fence = CASE WHEN j.fence >= @claim_micros THEN j.fence + 1 ELSE @claim_micros END,
  attempts = j.attempts + 1 - {uncounted}, prefetched = {uncounted},
  claim_max = COALESCE(j.max_attempts, p.max_attempts),
  backoff_ms = p.backoff_ms, backoff_max_ms = p.backoff_max_ms, retention_done_ms = CASE WHEN j.retain_ms > COALESCE(p.retention_done_ms, 0) THEN j.retain_ms ELSE p.retention_done_ms END, retention_dead_ms = p.retention_dead_ms,
  token_sidecar = s.sidecar, token_number = s.number, lease_ms = s.lease_ms, worker = CASE WHEN {alone} THEN NULL ELSE s.worker END,
  deadline = {deadline},
  due_at = CASE WHEN s.prefetched = 1 OR {alone} THEN NULL WHEN s.ends IS NULL OR {deadline} <= s.ends
    THEN {deadline} ELSE s.ends END
OUTPUT inserted.id INTO @claim_taken
FROM @claim_chosen AS c, @claim_slot AS s, @claim_policy AS p, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE s.slot = c.slot AND p.policy = c.policy AND j.id = c.id AND j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @claim_taken);
SELECT c.slot, c.policy, j.position, j.id, j.priority, j.attempts + j.prefetched AS attempt, j.claim_max, j.fence, j.enqueued_at,
  COALESCE(j.timeout_ms, 0) AS timeout_ms, COALESCE(j.headers, N'') AS headers, COALESCE(j.[key], N'') AS name,
  COALESCE(j.last_error, N'') AS last_error, j.losses, COALESCE(j.admitted_group, N'') AS admitted_group, COALESCE(j.progress, 0) AS progress, {start_within} AS start_within, j.payload
FROM @claim_taken AS t
INNER JOIN @claim_chosen AS c ON c.id = t.id
INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = t.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT 0 AS policy, COUNT_BIG(*) AS id, CONVERT(bigint, 0) AS size FROM @claim_chosen AS c
UNION ALL
SELECT p.policy, p.id, p.size FROM @claim_picked AS p
WHERE NOT EXISTS (SELECT 1 FROM @claim_chosen AS c WHERE c.id = p.id);

-- name: bury
-- Makes locked ready jobs dead whose payloads are too large to be delivered. It answers with their groups.
-- @bury_jobs nvarchar(max)
-- sets 1
DECLARE @bury TABLE (id bigint NOT NULL PRIMARY KEY, claim_max int NOT NULL, retention_dead_ms bigint NULL, message nvarchar(max) NOT NULL);
INSERT INTO @bury (id, claim_max, retention_dead_ms, message)
SELECT x.id, x.claim_max, x.retention_dead_ms, x.message
FROM OPENJSON(@bury_jobs) WITH (id bigint, claim_max int, retention_dead_ms bigint, message nvarchar(max)) AS x;
DECLARE @bury_micros bigint = DATEDIFF_BIG(microsecond, '1970-01-01', @now);
DECLARE @buried TABLE (id bigint NOT NULL PRIMARY KEY, fence bigint NOT NULL, attempts int NOT NULL, [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
UPDATE j SET state = 'dead', attempts = j.attempts + 1,
  fence = CASE WHEN j.fence >= @bury_micros THEN j.fence + 1 ELSE @bury_micros END,
  claim_max = COALESCE(j.max_attempts, b.claim_max), retention_dead_ms = b.retention_dead_ms, finished_at = @now,
  prune_at = DATEADD(second, CONVERT(int, b.retention_dead_ms / 1000), DATEADD(millisecond, CONVERT(int, b.retention_dead_ms % 1000), @now)),
  last_error = b.message, group_name = j.admitted_group, admitted_group = NULL
OUTPUT inserted.id, inserted.fence, inserted.attempts, inserted.[key], inserted.queue, inserted.group_name INTO @buried
FROM @bury AS b, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = b.id AND j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT y.id, y.fence, y.attempts, 'too_large', b.message, @now
FROM @buried AS y INNER JOIN @bury AS b ON b.id = y.id;
IF EXISTS (SELECT 1 FROM @buried AS y WHERE y.[key] IS NOT NULL)
  UPDATE k SET state = 'dead'
  FROM @buried AS y INNER JOIN {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = y.id
  WHERE y.[key] IS NOT NULL
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @buried);
SELECT DISTINCT y.queue, y.group_name FROM @buried AS y WHERE y.group_name IS NOT NULL;

-- name: remove_expired
-- Deletes locked waiting jobs that expired. The key of a deleted job would have to be locked, so those that have one become dead,
-- and are pruned soon. It answers with how many, and with the groups of the deleted ones.
-- @unstarted_ids nvarchar(max)
-- sets 2
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT j.id
FROM OPENJSON(@unstarted_ids) WITH (id bigint) AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.[key] IS NULL AND j.state IN ('ready', 'scheduled')
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{remove_tail}
SELECT DISTINCT d.queue, COALESCE(d.group_name, d.admitted_group) AS group_name
FROM @pruned AS d WHERE d.group_name IS NOT NULL OR d.admitted_group IS NOT NULL;

-- name: expire
-- Makes locked waiting jobs dead whose time to start is over. It treats keys as bury does, and answers with the
-- groups of the jobs.
-- @expire_jobs nvarchar(max)
-- @expire_message nvarchar(max)
-- sets 1
DECLARE @expire TABLE (id bigint NOT NULL PRIMARY KEY, dead_ms bigint NULL);
INSERT INTO @expire (id, dead_ms)
SELECT x.id, x.dead_ms FROM OPENJSON(@expire_jobs) WITH (id bigint, dead_ms bigint) AS x;
DECLARE @expire_micros bigint = DATEDIFF_BIG(microsecond, '1970-01-01', @now);
DECLARE @expired TABLE (id bigint NOT NULL PRIMARY KEY, fence bigint NOT NULL, attempts int NOT NULL, [key] nvarchar(255) COLLATE Latin1_General_100_BIN2 NULL,
  queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, group_name nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
UPDATE j SET state = 'dead', run_at = NULL, fence = CASE WHEN j.fence >= @expire_micros THEN j.fence + 1 ELSE @expire_micros END,
  retention_dead_ms = COALESCE(b.dead_ms, j.retention_dead_ms), finished_at = @now,
  prune_at = DATEADD(second, CONVERT(int, COALESCE(b.dead_ms, j.retention_dead_ms) / 1000),
    DATEADD(millisecond, CONVERT(int, COALESCE(b.dead_ms, j.retention_dead_ms) % 1000), @now)),
  last_error = @expire_message, group_name = COALESCE(j.group_name, j.admitted_group), admitted_group = NULL
OUTPUT inserted.id, inserted.fence, inserted.attempts, inserted.[key], inserted.queue, inserted.group_name INTO @expired
FROM @expire AS b, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = b.id AND j.state IN ('ready', 'scheduled')
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
SELECT y.id, y.fence, y.attempts, 'expired', @expire_message, @now
FROM @expired AS y;
IF EXISTS (SELECT 1 FROM @expired AS y WHERE y.[key] IS NOT NULL)
  UPDATE k SET state = 'dead'
  FROM @expired AS y INNER JOIN {s}.qsidecar_keys AS k WITH (INDEX (qsidecar_keys_job), ROWLOCK, FORCESEEK, NOWAIT) ON k.job = y.id
  WHERE y.[key] IS NOT NULL
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @expired);
SELECT DISTINCT y.queue, y.group_name FROM @expired AS y WHERE y.group_name IS NOT NULL;

-- name: probe
-- The first ready row of pieces of the index. It does not wait for a lock: a locked row that
-- is ready, or that a rollback or a commit can make ready, is an error.
-- @probe_queue varchar(128)
-- @probe_pieces nvarchar(max)
-- sets 1
SET LOCK_TIMEOUT 0;
DECLARE @probe TABLE (n int NOT NULL PRIMARY KEY, priority smallint NOT NULL, low bigint NOT NULL, high bigint NOT NULL);
INSERT INTO @probe (n, priority, low, high)
SELECT x.n, x.priority, x.low, x.high
FROM OPENJSON(@probe_pieces) WITH (n int, priority smallint, low bigint, high bigint) AS x;
SELECT x.n, r.position
FROM @probe AS x
CROSS APPLY (
  SELECT TOP (1) j.position
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, ROWLOCK, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @probe_queue AND j.priority = x.priority AND j.position > x.low AND j.position <= x.high
  ORDER BY j.position
) AS r
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
