-- Deletes expired finished jobs. It answers with how many.
-- @prune_limit bigint
-- sets 1
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT TOP (@prune_limit) j.id
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_expiring), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE j.expires_at IS NOT NULL AND j.expires_at <= @now
ORDER BY j.expires_at;
{remove_tail}
