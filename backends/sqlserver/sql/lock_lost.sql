-- Locks claims of owners that are not alive, and shows them. A timed lease needs no
-- owner: its owner becomes 0, so that it is not found again. The last set counts the
-- rows of either kind.
-- @lost_owners nvarchar(max)
-- @lost_limit bigint
-- sets 2
DECLARE @lost_owner TABLE (owner bigint NOT NULL PRIMARY KEY);
INSERT INTO @lost_owner (owner)
SELECT x.owner FROM OPENJSON(@lost_owners) WITH (owner bigint) AS x;
DECLARE @lost TABLE (id bigint NOT NULL PRIMARY KEY, timed tinyint NOT NULL);
INSERT INTO @lost (id, timed)
SELECT TOP (@lost_limit) j.id, CASE WHEN j.lease_ms IS NULL THEN 0 ELSE 1 END
FROM @lost_owner AS o
INNER JOIN {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_owned), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.owner = o.owner
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER);
UPDATE j SET owner = 0
FROM @lost AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE x.timed = 1 AND j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER);
SET @wrote = @wrote + @@ROWCOUNT;
SELECT 'sidecar_lost' AS cause, {claim}
FROM @lost AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE x.timed = 0 AND j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER);
SELECT COUNT_BIG(*) AS found FROM @lost AS x;
