-- Deletes some of a queue's jobs in one state. It answers with how many.
-- @purge_queue varchar(128)
-- @purge_limit bigint
-- sets 1
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT TOP (@purge_limit) j.id
FROM {s}.qsidecar_jobs AS j WITH (INDEX ({index}), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE {where} AND j.queue = @purge_queue
ORDER BY {order};
{remove_tail}
