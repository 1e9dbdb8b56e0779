-- Whether the sidecar is alive that the transaction claims for, and how often jobs of the
-- claims' queues were given back.
-- @host_id bigint
-- @host_queues nvarchar(max)
-- sets 2
SELECT CASE WHEN EXISTS (SELECT 1 FROM {s}.qsidecar_sidecars AS h WHERE h.sidecar = @host_id AND h.dead = 0 AND h.has_left = 0) THEN 1 ELSE 0 END AS alive;
DECLARE @host_queue TABLE (n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @host_queue (n, queue)
SELECT x.n, x.queue FROM OPENJSON(@host_queues) WITH (n int, queue nvarchar(4000)) AS x;
SELECT x.n, r.requeues
FROM @host_queue AS x INNER JOIN {s}.qsidecar_requeues AS r WITH (FORCESEEK) ON r.queue = x.queue
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
