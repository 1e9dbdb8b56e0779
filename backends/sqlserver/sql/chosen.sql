-- The sizes of named jobs.
-- @chosen_queue varchar(128)
-- @chosen_ids nvarchar(max)
-- sets 1
DECLARE @chosen TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY);
INSERT INTO @chosen (n, id)
SELECT x.n, x.id FROM OPENJSON(@chosen_ids) WITH (n int, id bigint) AS x;
SELECT j.id, DATALENGTH(j.payload) + COALESCE(DATALENGTH(j.result), 0) AS size
FROM @chosen AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = x.id
WHERE j.queue = @chosen_queue
ORDER BY x.n
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
