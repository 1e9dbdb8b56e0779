-- Deletes named jobs, in any state but claimed. It answers with how many.
-- @delete_queue varchar(128)
-- @delete_ids nvarchar(max)
-- sets 1
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT j.id
FROM OPENJSON(@delete_ids) WITH (id bigint) AS x
INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @delete_queue AND j.state <> 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{remove_tail}
{remove_keys}
