-- Deletes expired finished jobs. It answers with how many.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over rows that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @prune_limit bigint
-- sets 1
DECLARE @prune TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @prune (id)
SELECT TOP (@prune_limit) r.id
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_expiring), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN {s}.qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.expires_at IS NOT NULL AND j.expires_at <= @now
ORDER BY j.expires_at
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{remove_tail}
