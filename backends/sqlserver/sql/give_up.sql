-- Marks the suspects dead that still look the same.
-- @suspects nvarchar(max)
-- sets 0
DECLARE @suspect TABLE (host bigint NOT NULL PRIMARY KEY, beats bigint NOT NULL);
INSERT INTO @suspect (host, beats)
SELECT x.host, x.beats FROM OPENJSON(@suspects) WITH (host bigint, beats bigint) AS x;
UPDATE h SET dead = 1
FROM @suspect AS x INNER JOIN {s}.qsidecar_hosts AS h WITH (ROWLOCK, FORCESEEK) ON h.host = x.host
WHERE h.beats = x.beats AND h.expires_at <= @now AND h.dead = 0
OPTION (LOOP JOIN, FORCE ORDER);
SET @wrote = @wrote + @@ROWCOUNT;
