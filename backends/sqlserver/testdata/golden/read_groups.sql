-- parameters: @members_groups nvarchar(max), @members_limit bigint, @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 5
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @members TABLE (n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @members (n, queue, name)
SELECT x.n, x.queue, x.name FROM OPENJSON(@members_groups) WITH (n int, queue nvarchar(4000), name nvarchar(4000)) AS x;
DECLARE @members_noted TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, name nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL, note bigint NOT NULL,
  PRIMARY KEY (queue, name, note));
INSERT INTO @members_noted (queue, name, note)
SELECT TOP (@members_limit) a.queue, a.group_name, a.note
FROM @members AS x
INNER JOIN [qsidecar].qsidecar_admissions AS a WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON a.queue = x.queue AND a.group_name = x.name
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DELETE a
FROM @members_noted AS x, [qsidecar].qsidecar_admissions AS a WITH (ROWLOCK, FORCESEEK)
WHERE a.queue = x.queue AND a.group_name = x.name AND a.note = x.note
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
DECLARE @members_arrived TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @members_arrived (id)
SELECT TOP (@members_limit) j.id
FROM @members AS x
INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_arrived), FORCESEEK, READPAST, READCOMMITTEDLOCK) ON j.queue = x.queue AND j.group_name = x.name
WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.group_noticed IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @members_slot TABLE (id bigint NOT NULL PRIMARY KEY, n int NOT NULL, state varchar(9) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @members_slot (id, n, state)
SELECT j.id, x.n, j.state
FROM @members AS x
INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_admitted), FORCESEEK) ON j.queue = x.queue AND j.admitted_group = x.name
WHERE j.admitted_group IS NOT NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @members_limits TABLE (n int NOT NULL PRIMARY KEY, group_limit bigint NULL, group_ready bigint NULL, places bigint NOT NULL);
INSERT INTO @members_limits (n, group_limit, group_ready, places)
SELECT x.n, q.group_limit, q.group_ready,
  COALESCE(CASE WHEN q.group_ready < q.group_limit THEN q.group_ready END, q.group_limit, q.group_ready, 1)
FROM @members AS x LEFT JOIN [qsidecar].qsidecar_queues AS q WITH (FORCESEEK) ON q.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
UPDATE @members_limits SET places = @members_limit WHERE places > @members_limit;
SELECT x.n, COALESCE(l.group_limit, 0) AS group_limit, COALESCE(l.group_ready, 0) AS group_ready,
  (SELECT COUNT_BIG(*) FROM @members_slot AS s WHERE s.n = x.n AND s.state = 'claimed') AS claimed
FROM @members AS x INNER JOIN @members_limits AS l ON l.n = x.n;
SELECT s.n, s.state, j.id, j.priority, j.position
FROM @members_slot AS s INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = s.id
WHERE s.state <> 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT x.n, b.id, b.priority, b.position
FROM @members AS x
INNER JOIN @members_limits AS l ON l.n = x.n
CROSS APPLY (
  SELECT TOP (l.places) j.id, j.priority, j.position
  FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
  WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = x.queue AND j.group_name = x.name
  ORDER BY j.priority DESC, j.position
) AS b
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT x.id FROM @members_arrived AS x;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
