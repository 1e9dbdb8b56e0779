-- Locks the claims of named jobs, whosever they are, as look.sql does.
-- @release_queue varchar(128)
-- @release_ids nvarchar(max)
-- sets 1
DECLARE @release TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY);
INSERT INTO @release (n, id)
SELECT x.n, x.id FROM OPENJSON(@release_ids) WITH (n int, id bigint) AS x;
SELECT x.n, '' AS cause, {standing}
FROM @release AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.queue = @release_queue AND j.state = 'claimed'
OPTION (LOOP JOIN, FORCE ORDER);
