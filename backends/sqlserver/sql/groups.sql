-- Statements of groups. backends/internal/core/groups.go describes them.

-- name: note_groups
-- Stores a note for each group. A note is a random number, so it waits for no other transaction.
-- @noted_groups nvarchar(max)
-- sets 0
INSERT INTO {s}.qsidecar_admissions (queue, group_name, note)
SELECT x.queue, x.name, x.note
FROM OPENJSON(@noted_groups) WITH (queue nvarchar(4000), name nvarchar(4000), note bigint) AS x;
SET @wrote = @wrote + 1;

-- name: note_all
-- Notes all groups of a queue that have blocked jobs or jobs with slots. It steps through the groups, not through the rows.
-- @every_queue varchar(128)
-- @every_note bigint
-- sets 0
DECLARE @every TABLE (name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @every_last nvarchar(256) = N'';
DECLARE @every_next nvarchar(256);
WHILE 1 = 1
BEGIN
  SET @every_next = NULL;
  SELECT TOP (1) @every_next = j.group_name FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @every_queue AND j.group_name > @every_last
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  IF @every_next IS NULL
    BREAK;
  INSERT INTO @every (name) VALUES (@every_next);
  SET @every_last = @every_next;
END;
SET @every_last = N'';
WHILE 1 = 1
BEGIN
  SET @every_next = NULL;
  SELECT TOP (1) @every_next = j.admitted_group FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.admitted_group IS NOT NULL AND j.queue = @every_queue AND j.admitted_group > @every_last
  ORDER BY j.admitted_group
  OPTION (KEEPFIXED PLAN);
  IF @every_next IS NULL
    BREAK;
  INSERT INTO @every (name) VALUES (@every_next);
  SET @every_last = @every_next;
END;
INSERT INTO {s}.qsidecar_admissions (queue, group_name, note)
SELECT DISTINCT @every_queue, x.name, @every_note FROM @every AS x;
SET @wrote = @wrote + 1;

-- name: leave_groups
-- Takes the slots from jobs that ended, and from those that give them up during their back-off.
-- @leaving_ids nvarchar(max)
-- sets 0
DECLARE @leaving TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @leaving (id)
SELECT x.id FROM OPENJSON(@leaving_ids) WITH (id bigint) AS x;
UPDATE j SET group_name = j.admitted_group, admitted_group = NULL
FROM @leaving AS x, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id AND j.admitted_group IS NOT NULL AND (j.state IN ('done', 'dead') OR j.state = 'scheduled' AND EXISTS (
  SELECT 1 FROM {s}.qsidecar_queues AS q WITH (FORCESEEK)
  WHERE q.queue = j.queue AND (q.group_skips = 1 OR q.group_limit IS NULL AND q.group_ready IS NOT NULL)))
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;

-- name: lock_stripes
-- Locks and writes stripes, in their order. The sidecar sends it before the statements that count: these then see what the
-- transactions committed that had the locks.
-- @striped_groups nvarchar(max)
-- sets 0
DECLARE @striped TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, stripe int NOT NULL, PRIMARY KEY (queue, stripe));
INSERT INTO @striped (queue, stripe)
SELECT x.queue, x.stripe FROM OPENJSON(@striped_groups) WITH (queue nvarchar(4000), stripe int) AS x;
UPDATE l SET passes = l.passes + 1
FROM (SELECT TOP (1000) y.queue, y.stripe FROM @striped AS y ORDER BY y.queue, y.stripe) AS x, {s}.qsidecar_stripes AS l WITH (ROWLOCK, FORCESEEK)
WHERE l.queue = x.queue AND l.stripe = x.stripe
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_stripes (queue, stripe, passes)
SELECT x.queue, x.stripe, 1
FROM @striped AS x
WHERE NOT EXISTS (SELECT 1 FROM {s}.qsidecar_stripes AS l WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE l.queue = x.queue AND l.stripe = x.stripe);
SET @wrote = @wrote + 1;

-- name: lock_free_stripes
-- Does the same, but leaves out stripes that other transactions have locked, and those that don't exist yet. It answers with the others.
-- @unheld_groups nvarchar(max)
-- sets 1
DECLARE @unheld TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, stripe int NOT NULL, PRIMARY KEY (queue, stripe));
INSERT INTO @unheld (queue, stripe)
SELECT x.queue, x.stripe FROM OPENJSON(@unheld_groups) WITH (queue nvarchar(4000), stripe int) AS x;
DECLARE @unheld_locked TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, stripe int NOT NULL, PRIMARY KEY (queue, stripe));
INSERT INTO @unheld_locked (queue, stripe)
SELECT l.queue, l.stripe
FROM @unheld AS x
INNER JOIN {s}.qsidecar_stripes AS l WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON l.queue = x.queue AND l.stripe = x.stripe
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE l SET passes = l.passes + 1
FROM @unheld_locked AS x, {s}.qsidecar_stripes AS l WITH (ROWLOCK, FORCESEEK)
WHERE l.queue = x.queue AND l.stripe = x.stripe
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
SELECT x.queue, x.stripe FROM @unheld_locked AS x;

-- name: read_groups
-- Reads the slots and the blocked jobs of groups whose stripes are locked, and deletes notes of the groups. It answers with the limits
-- of each group and how many claimed jobs have slots; with the ready and scheduled jobs that have slots; with the first blocked
-- jobs; and with jobs that no sidecar has noticed. It reads the last of these first: so those that are marked as noticed are
-- among the blocked ones.
--
-- One statement reads all jobs with slots, in the order of an index in which no job moves when its state changes. So it misses
-- none. Without row versions it waits for transactions that have changed one of these jobs. Blocked jobs that other
-- transactions have stored or changed are passed over.
-- @members_groups nvarchar(max)
-- @members_limit bigint
-- sets 4
DECLARE @members TABLE (n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @members (n, queue, name)
SELECT x.n, x.queue, x.name FROM OPENJSON(@members_groups) WITH (n int, queue nvarchar(4000), name nvarchar(4000)) AS x;
DECLARE @members_noted TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL, note bigint NOT NULL,
  PRIMARY KEY (queue, name, note));
INSERT INTO @members_noted (queue, name, note)
SELECT TOP (@members_limit) a.queue, a.group_name, a.note
FROM @members AS x
INNER JOIN {s}.qsidecar_admissions AS a WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON a.queue = x.queue AND a.group_name = x.name
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DELETE a
FROM @members_noted AS x, {s}.qsidecar_admissions AS a WITH (ROWLOCK, FORCESEEK)
WHERE a.queue = x.queue AND a.group_name = x.name AND a.note = x.note
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
DECLARE @members_arrived TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @members_arrived (id)
SELECT TOP (@members_limit) j.id
FROM @members AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_arrived), FORCESEEK, READPAST, READCOMMITTEDLOCK) ON j.queue = x.queue AND j.group_name = x.name
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.group_noticed IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @members_slot TABLE (id bigint NOT NULL PRIMARY KEY, n int NOT NULL, state varchar(9) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @members_slot (id, n, state)
SELECT j.id, x.n, j.state
FROM @members AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK) ON j.queue = x.queue AND j.admitted_group = x.name
WHERE j.admitted_group IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @members_limits TABLE (n int NOT NULL PRIMARY KEY, group_limit bigint NULL, group_ready bigint NULL, places bigint NOT NULL);
INSERT INTO @members_limits (n, group_limit, group_ready, places)
SELECT x.n, q.group_limit, q.group_ready,
  COALESCE(CASE WHEN q.group_ready < q.group_limit THEN q.group_ready END, q.group_limit, q.group_ready, 1)
FROM @members AS x LEFT JOIN {s}.qsidecar_queues AS q WITH (FORCESEEK) ON q.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE @members_limits SET places = @members_limit WHERE places > @members_limit;
SELECT x.n, COALESCE(l.group_limit, 0) AS group_limit, COALESCE(l.group_ready, 0) AS group_ready,
  (SELECT COUNT_BIG(*) FROM @members_slot AS s WHERE s.n = x.n AND s.state = 'claimed') AS claimed
FROM @members AS x INNER JOIN @members_limits AS l ON l.n = x.n;
SELECT s.n, s.state, j.id, j.priority, j.position
FROM @members_slot AS s INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = s.id
WHERE s.state <> 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT x.n, b.id, b.priority, b.position
FROM @members AS x
INNER JOIN @members_limits AS l ON l.n = x.n
CROSS APPLY (
  SELECT TOP (l.places) j.id, j.priority, j.position
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = x.queue AND j.group_name = x.name
  ORDER BY j.priority DESC, j.position
) AS b
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT x.id FROM @members_arrived AS x;

-- name: lock_members
-- Locks jobs of groups, except those that other transactions have locked, and shows their states and groups.
-- @locking_ids nvarchar(max)
-- sets 1
DECLARE @locking TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @locking (id)
SELECT x.id FROM OPENJSON(@locking_ids) WITH (id bigint) AS x;
SELECT j.id, {shown_state} AS state, COALESCE(j.group_name, j.admitted_group, N'') AS group_name
FROM @locking AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = x.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: change_slots
-- Changes locked jobs. kind 1: a job in its back-off loses its slot; 2: a ready one does; 3: a blocked one gets one; 4: it also
-- gets a new position, in the order of n; 5: it stays blocked, and is noticed. It answers with how many it changed.
-- @slot_changes nvarchar(max)
-- sets 1
DECLARE @slot_base bigint;
SET @slot_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @slot TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY, kind int NOT NULL);
INSERT INTO @slot (n, id, kind)
SELECT x.n, x.id, x.kind FROM OPENJSON(@slot_changes) WITH (n int, id bigint, kind int) AS x;
DECLARE @slot_changed TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET group_name = CASE WHEN x.kind IN (1, 2) THEN j.admitted_group WHEN x.kind = 5 THEN j.group_name END,
  admitted_group = CASE WHEN x.kind IN (3, 4) THEN j.group_name END,
  group_noticed = CASE WHEN x.kind IN (2, 5) THEN 1 END,
  position = CASE WHEN x.kind = 4 THEN @slot_base + x.n ELSE j.position END
OUTPUT inserted.id INTO @slot_changed
FROM @slot AS x, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + 1;
SELECT COUNT_BIG(*) AS changed FROM @slot_changed AS y;

-- name: count_returns
-- Counts that jobs became ready at their old positions, and shows how often that happened in each queue.
-- @returned_queues nvarchar(max)
-- sets 1
DECLARE @returned TABLE (n int NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @returned (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@returned_queues) WITH (n int, queue nvarchar(4000)) AS x;
UPDATE r SET requeues = r.requeues + 1
FROM (SELECT TOP (1000) y.queue FROM @returned AS y ORDER BY y.queue) AS x, {s}.qsidecar_requeues AS r WITH (ROWLOCK, FORCESEEK)
WHERE r.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
INSERT INTO {s}.qsidecar_requeues (queue, requeues)
SELECT x.queue, 1
FROM @returned AS x
WHERE NOT EXISTS (SELECT 1 FROM {s}.qsidecar_requeues AS r WITH (UPDLOCK, HOLDLOCK, ROWLOCK, FORCESEEK) WHERE r.queue = x.queue);
SET @wrote = @wrote + 1;
SELECT x.n, r.requeues
FROM @returned AS x INNER JOIN {s}.qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);

-- name: group_slots
-- Jobs that have a slot of a group.
-- @slots_queue varchar(128)
-- @slots_group nvarchar(256)
-- @slots_limit bigint
-- sets 1
SELECT TOP (@slots_limit) j.id, j.state
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
WHERE j.admitted_group IS NOT NULL AND j.queue = @slots_queue AND j.admitted_group = @slots_group
ORDER BY j.id
OPTION (KEEPFIXED PLAN);

-- name: find_groups
-- Groups that possibly have something to change: noted ones, those with jobs that no sidecar has noticed, and those with blocked jobs or
-- slots. It steps through the groups, not through the rows.
-- @found_noted_queue varchar(128)
-- @found_noted_group nvarchar(256)
-- @found_noted_limit bigint
-- @found_arrived_queue varchar(128)
-- @found_arrived_group nvarchar(256)
-- @found_arrived_limit bigint
-- @found_every_queue varchar(128)
-- @found_every_group nvarchar(256)
-- @found_every_limit bigint
-- sets 3
DECLARE @found_noted TABLE (n bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_noted_next TABLE (n bigint NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_noted_n bigint = 0;
WHILE @found_noted_n < @found_noted_limit
BEGIN
  INSERT INTO @found_noted_next (n, queue, name)
  SELECT TOP (1) @found_noted_n, j.queue, j.group_name
  FROM {s}.qsidecar_admissions AS j WITH (FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.queue = @found_noted_queue AND j.group_name > @found_noted_group
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_noted_next (n, queue, name)
  SELECT TOP (1) @found_noted_n, j.queue, j.group_name
  FROM {s}.qsidecar_admissions AS j WITH (FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.queue > @found_noted_queue
  ORDER BY j.queue, j.group_name
  OPTION (KEEPFIXED PLAN);
  SELECT TOP (1) @found_noted_queue = f.queue, @found_noted_group = f.name FROM @found_noted_next AS f WHERE f.n = @found_noted_n ORDER BY f.queue, f.name;
  IF @@ROWCOUNT = 0
    BREAK;
  INSERT INTO @found_noted (n, queue, name) VALUES (@found_noted_n, @found_noted_queue, @found_noted_group);
  SET @found_noted_n = @found_noted_n + 1;
END;
SELECT w.queue, w.name FROM @found_noted AS w ORDER BY w.n;
DECLARE @found_arrived TABLE (n bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_arrived_next TABLE (n bigint NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_arrived_n bigint = 0;
WHILE @found_arrived_n < @found_arrived_limit
BEGIN
  INSERT INTO @found_arrived_next (n, queue, name)
  SELECT TOP (1) @found_arrived_n, j.queue, j.group_name
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_arrived), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.group_noticed IS NULL AND j.queue = @found_arrived_queue AND j.group_name > @found_arrived_group
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_arrived_next (n, queue, name)
  SELECT TOP (1) @found_arrived_n, j.queue, j.group_name
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_arrived), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.group_noticed IS NULL AND j.queue > @found_arrived_queue
  ORDER BY j.queue, j.group_name
  OPTION (KEEPFIXED PLAN);
  SELECT TOP (1) @found_arrived_queue = f.queue, @found_arrived_group = f.name FROM @found_arrived_next AS f WHERE f.n = @found_arrived_n ORDER BY f.queue, f.name;
  IF @@ROWCOUNT = 0
    BREAK;
  INSERT INTO @found_arrived (n, queue, name) VALUES (@found_arrived_n, @found_arrived_queue, @found_arrived_group);
  SET @found_arrived_n = @found_arrived_n + 1;
END;
SELECT w.queue, w.name FROM @found_arrived AS w ORDER BY w.n;
DECLARE @found_every TABLE (n bigint NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_every_next TABLE (n bigint NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
DECLARE @found_every_n bigint = 0;
WHILE @found_every_n < @found_every_limit
BEGIN
  INSERT INTO @found_every_next (n, queue, name)
  SELECT TOP (1) @found_every_n, j.queue, j.group_name
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = @found_every_queue AND j.group_name > @found_every_group
  ORDER BY j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_every_next (n, queue, name)
  SELECT TOP (1) @found_every_n, j.queue, j.group_name
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue > @found_every_queue
  ORDER BY j.queue, j.group_name
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_every_next (n, queue, name)
  SELECT TOP (1) @found_every_n, j.queue, j.admitted_group
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.admitted_group IS NOT NULL AND j.queue = @found_every_queue AND j.admitted_group > @found_every_group
  ORDER BY j.admitted_group
  OPTION (KEEPFIXED PLAN);
  INSERT INTO @found_every_next (n, queue, name)
  SELECT TOP (1) @found_every_n, j.queue, j.admitted_group
  FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.admitted_group IS NOT NULL AND j.queue > @found_every_queue
  ORDER BY j.queue, j.admitted_group
  OPTION (KEEPFIXED PLAN);
  SELECT TOP (1) @found_every_queue = f.queue, @found_every_group = f.name FROM @found_every_next AS f WHERE f.n = @found_every_n ORDER BY f.queue, f.name;
  IF @@ROWCOUNT = 0
    BREAK;
  INSERT INTO @found_every (n, queue, name) VALUES (@found_every_n, @found_every_queue, @found_every_group);
  SET @found_every_n = @found_every_n + 1;
END;
SELECT w.queue, w.name FROM @found_every AS w ORDER BY w.n;
