-- Makes due jobs ready, in the order in which they are due: at most a thousand. It
-- answers with the queue of each.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over rows that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @promote_limit bigint
-- sets 1
DECLARE @promote_base bigint;
SET @promote_base = NEXT VALUE FOR {s}.qsidecar_sequence;
DECLARE @promote TABLE (id bigint NOT NULL PRIMARY KEY, run_at datetime2(6) NOT NULL, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL);
INSERT INTO @promote (id, run_at, queue)
SELECT TOP (@promote_limit) r.id, r.run_at, r.queue
FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_scheduled), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN {s}.qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.run_at IS NOT NULL AND j.run_at <= @now AND r.run_at IS NOT NULL
ORDER BY j.run_at, j.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
{promote_tail}
