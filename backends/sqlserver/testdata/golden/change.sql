-- parameters: @change_queue varchar(128), @change_ids nvarchar(max), @change_set bigint, @change_priority bigint, @change_mode bigint, @change_delay bigint, @change_within bigint, @change_at datetime2(6), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @change_base bigint;
SET @change_base = NEXT VALUE FOR [qsidecar].qsidecar_sequence;
DECLARE @change TABLE (id bigint NOT NULL PRIMARY KEY, n int NOT NULL, due datetime2(6) NULL, waits tinyint NOT NULL,
  freed nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL);
INSERT INTO @change (id, n, due, waits, freed)
SELECT j.id, x.n, CASE
    WHEN @change_mode = 1 AND @change_within > 0 AND DATEADD(second, CONVERT(int, @change_within / 1000), DATEADD(millisecond, CONVERT(int, @change_within % 1000), j.enqueued_at)) < DATEADD(second, CONVERT(int, @change_delay / 1000), DATEADD(millisecond, CONVERT(int, @change_delay % 1000), @now)) THEN DATEADD(second, CONVERT(int, @change_within / 1000), DATEADD(millisecond, CONVERT(int, @change_within % 1000), j.enqueued_at))
    WHEN @change_mode = 1 THEN DATEADD(second, CONVERT(int, @change_delay / 1000), DATEADD(millisecond, CONVERT(int, @change_delay % 1000), @now))
    WHEN @change_mode = 2 THEN @change_at
    ELSE j.run_at END,
  CASE WHEN j.group_name IS NOT NULL OR j.admitted_group IS NOT NULL AND j.run_at IS NULL THEN 1 ELSE 0 END,
  CASE WHEN j.run_at IS NULL THEN j.admitted_group END
FROM OPENJSON(@change_ids) WITH (n int, id bigint) AS x
INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
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
FROM @change AS x, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = x.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @changed);
SELECT (SELECT COUNT_BIG(*) FROM @changed AS y) AS changed, (SELECT COUNT_BIG(*) FROM @change AS x WHERE x.due IS NULL AND x.waits = 0) AS ready;
SELECT DISTINCT @change_queue AS queue, x.freed FROM @change AS x WHERE x.freed IS NOT NULL;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
