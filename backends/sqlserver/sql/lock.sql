-- Locks the claimed rows among some jobs and shows them. If a queue is given, the jobs
-- must be in it. The cause is always empty.
-- @lock_queue varchar(128)
-- @lock_ids nvarchar(max)
-- sets 1
DECLARE @lock TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @lock (id)
SELECT x.id FROM OPENJSON(@lock_ids) WITH (id bigint) AS x;
SELECT '' AS cause, {claim}
FROM @lock AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.state = 'claimed' AND (@lock_queue = '' OR j.queue = @lock_queue)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
