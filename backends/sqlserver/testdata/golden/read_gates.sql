-- parameters: @gates_queues nvarchar(max), @gates_settles bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @gates TABLE (n int NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @gates (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@gates_queues) WITH (n int, queue nvarchar(4000)) AS x;
DECLARE @gates_changed TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY);
INSERT INTO @gates_changed (queue)
SELECT x.queue
FROM @gates AS x INNER JOIN [qsidecar].qsidecar_queues AS q WITH (FORCESEEK) ON q.queue = x.queue
WHERE q.max_claimed IS NOT NULL AND DATEADD(millisecond, CONVERT(int, @gates_settles), q.limits_at) > @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
IF EXISTS (SELECT 1 FROM @gates_changed AS x)
  INSERT INTO [qsidecar].qsidecar_capped (queue, job)
  SELECT j.queue, j.id
  FROM @gates_changed AS x INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_owned)) ON j.queue = x.queue
  WHERE j.state = 'claimed' AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_capped AS c WITH (FORCESEEK) WHERE c.queue = j.queue AND c.job = j.id)
  OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DECLARE @gates_ended TABLE (queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, job bigint NOT NULL, PRIMARY KEY (queue, job));
INSERT INTO @gates_ended (queue, job)
SELECT c.queue, c.job
FROM @gates AS x
INNER JOIN [qsidecar].qsidecar_capped AS c WITH (FORCESEEK) ON c.queue = x.queue
LEFT JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = c.job AND j.state = 'claimed'
WHERE j.id IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
DELETE c
FROM @gates_ended AS x, [qsidecar].qsidecar_capped AS c WITH (ROWLOCK, FORCESEEK)
WHERE c.queue = x.queue AND c.job = x.job
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT x.n, COALESCE(q.max_claimed, 0) AS max_claimed, COALESCE(q.rate, 0) AS rate, COALESCE(q.rate_ms, 0) AS rate_ms, COALESCE(q.burst, 0) AS burst,
  (SELECT COUNT_BIG(*) FROM [qsidecar].qsidecar_capped AS c WITH (FORCESEEK) WHERE c.queue = x.queue) AS claimed, DATEDIFF_BIG(microsecond, '1970-01-01', @now) * 1000 AS now_ns, g.next_at
FROM @gates AS x
INNER JOIN [qsidecar].qsidecar_gates AS g WITH (FORCESEEK) ON g.queue = x.queue
LEFT JOIN [qsidecar].qsidecar_queues AS q WITH (FORCESEEK) ON q.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
