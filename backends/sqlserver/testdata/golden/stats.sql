-- parameters: @stats_queues nvarchar(max), @stats_limit bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
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
    FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
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
FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), READPAST, READCOMMITTEDLOCK)
WHERE j.state = 'claimed'
GROUP BY j.queue
OPTION (KEEPFIXED PLAN);
SELECT x.n, @now AS now,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = x.queue) AS c) AS ready,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_blocked), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NOT NULL AND j.queue = x.queue) AS c) AS blocked,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_delayed), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.run_at IS NOT NULL AND j.queue = x.queue) AS c) AS scheduled,
  COALESCE(CASE WHEN y.jobs > @stats_limit THEN @stats_limit ELSE y.jobs END, 0) AS claimed,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.finished_at IS NOT NULL AND j.queue = x.queue AND j.state = 'done') AS c) AS done,
  (SELECT COUNT_BIG(*) FROM (SELECT TOP (@stats_limit) j.id FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_finished), FORCESEEK, READPAST, READCOMMITTEDLOCK)
    WHERE j.finished_at IS NOT NULL AND j.queue = x.queue AND j.state = 'dead') AS c) AS dead,
  CASE WHEN EXISTS (SELECT 1 FROM [qsidecar].qsidecar_queues AS q WHERE q.queue = x.queue AND q.paused = 1) THEN 1 ELSE 0 END AS paused,
  y.since AS claimed_at,
  x.oldest
FROM @stats AS x LEFT JOIN @stats_claimed AS y ON y.queue = x.queue
OPTION (KEEPFIXED PLAN);
