-- Locks claims of owners that are not alive, and shows them. The last set counts the rows.
-- The index has all columns that the statement needs, so the server would lock entries of the
-- index alone, and would not pass over rows that others have locked. The join locks the rows.
-- https://learn.microsoft.com/sql/t-sql/queries/hints-transact-sql-table (Remarks)
-- @lost_owners nvarchar(max)
-- @lost_limit bigint
-- sets 2
DECLARE @lost_owner TABLE (owner bigint NOT NULL PRIMARY KEY);
INSERT INTO @lost_owner (owner)
SELECT x.owner FROM OPENJSON(@lost_owners) WITH (owner bigint) AS x;
DECLARE @lost TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @lost (id)
SELECT TOP (@lost_limit) r.id
FROM @lost_owner AS o
INNER JOIN {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.owner = o.owner
INNER JOIN {s}.qsidecar_jobs AS r WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON r.id = j.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT 'sidecar_lost' AS cause, {claim}
FROM @lost AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT COUNT_BIG(*) AS found FROM @lost AS x;
