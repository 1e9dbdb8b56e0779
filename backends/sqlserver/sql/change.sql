-- Changes the priority (if set is 1) or the time of named jobs that wait: to a delay (mode 1)
-- or an instant (mode 2). It answers with how many, and how many of them are ready.
-- @change_queue varchar(128)
-- @change_ids nvarchar(max)
-- @change_set bigint
-- @change_priority bigint
-- @change_mode bigint
-- @change_delay bigint
-- @change_at datetime2(6)
-- sets 1
DECLARE @change_base bigint;
SET @change_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @change TABLE (id bigint NOT NULL PRIMARY KEY, n int NOT NULL, due datetime2(6) NULL);
INSERT INTO @change (id, n, due)
SELECT j.id, x.n, CASE
    WHEN @change_mode = 1 THEN DATEADD(second, CONVERT(int, @change_delay / 1000), DATEADD(millisecond, CONVERT(int, @change_delay % 1000), @now))
    WHEN @change_mode = 2 THEN @change_at
    ELSE j.run_at END
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
  ready_at = CASE WHEN x.due IS NULL THEN @now ELSE j.ready_at END
OUTPUT inserted.id INTO @changed
FROM @change AS x, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @changed);
SELECT (SELECT COUNT_BIG(*) FROM @changed AS y) AS changed, (SELECT COUNT_BIG(*) FROM @change AS x WHERE x.due IS NULL) AS ready;
