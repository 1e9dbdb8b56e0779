-- Retries named dead jobs.
-- @retry_queue varchar(128)
-- @retry_ids nvarchar(max)
-- @retry_whole bigint
-- sets 1
{retry_head}
INSERT INTO @retry (id, n, finished_at, name, [key])
SELECT j.id, x.n, j.finished_at, CONVERT(varbinary(510), j.[key]), j.[key]
FROM OPENJSON(@retry_ids) WITH (n int, id bigint) AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @retry_queue AND j.state = 'dead'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{retry_tail}
