-- Locks the claimed rows among some jobs, except those that other transactions have locked, and
-- shows the ids of these. The last query reads uncommitted rows, so that it waits for no lock.
-- @find_ids nvarchar(max)
-- sets 1
DECLARE @find TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @find (id)
SELECT x.id FROM OPENJSON(@find_ids) WITH (id bigint) AS x;
DECLARE @find_free TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @find_free (id)
SELECT j.id
FROM @find AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK) ON j.id = x.id
WHERE j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT j.id
FROM @find AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK, READUNCOMMITTED) ON j.id = x.id
WHERE j.state = 'claimed' AND NOT EXISTS (SELECT 1 FROM @find_free AS f WHERE f.id = j.id)
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
