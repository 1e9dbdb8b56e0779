-- Locks the rows of leases that are to be given up, and shows what they say about
-- their tries. An owner that is no NULL must be the claim's.
-- @look_leases nvarchar(max)
-- sets 1
DECLARE @look TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY, host bigint NOT NULL, number bigint NOT NULL, owner bigint NULL);
INSERT INTO @look (n, id, host, number, owner)
SELECT x.n, x.id, x.host, x.number, x.owner
FROM OPENJSON(@look_leases) WITH (n int, id bigint, host bigint, number bigint, owner bigint) AS x;
SELECT x.n, '' AS cause, {standing}
FROM @look AS x INNER JOIN {s}.qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = x.id
WHERE j.token_host = x.host AND j.token_number = x.number AND (x.owner IS NULL OR j.owner = x.owner)
OPTION (LOOP JOIN, FORCE ORDER);
