-- Deletes those of the given jobs that are finished and expired. It answers with how many.
-- It runs only if the database has refused to delete a job.
-- @prune_ids nvarchar(max)
-- sets 1
DECLARE @prune_id TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune_id (id)
SELECT x.id FROM OPENJSON(@prune_ids) WITH (id bigint) AS x;
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT j.id
FROM @prune_id AS o
INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = o.id
WHERE j.expires_at IS NOT NULL AND j.expires_at <= @now
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{remove_tail}
