-- Makes those of the given jobs ready that are due: at most a thousand. It answers with
-- the queue of each. It runs only if the database has refused a job.
-- @promote_ids nvarchar(max)
-- sets 1
DECLARE @promote_base bigint;
SET @promote_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @promote_id TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @promote_id (id)
SELECT x.id FROM OPENJSON(@promote_ids) WITH (id bigint) AS x;
DECLARE @promote TABLE (id bigint NOT NULL PRIMARY KEY, run_at datetime2(6) NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @promote (id, run_at, queue)
SELECT j.id, j.run_at, j.queue
FROM @promote_id AS o
INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = o.id
WHERE j.run_at IS NOT NULL AND j.run_at <= @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{promote_tail}
