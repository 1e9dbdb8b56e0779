-- parameters: @host_id bigint, @host_queues nvarchar(max)
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
SELECT CASE WHEN EXISTS (SELECT 1 FROM [qsidecar].qsidecar_sidecars AS h WHERE h.sidecar = @host_id AND h.dead = 0 AND h.has_left = 0) THEN 1 ELSE 0 END AS alive;
DECLARE @host_queue TABLE (n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @host_queue (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@host_queues) WITH (n int, queue nvarchar(4000)) AS x;
SELECT x.n, COALESCE(r.requeues, 0) AS requeues, CASE WHEN q.max_claimed IS NULL AND q.rate IS NULL THEN 0 ELSE 1 END AS gated,
  CASE WHEN q.group_ready IS NULL THEN 0 ELSE 1 END AS fair
FROM @host_queue AS x
LEFT JOIN [qsidecar].qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = x.queue
LEFT JOIN [qsidecar].qsidecar_queues AS q WITH (FORCESEEK) ON q.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
