-- Marks suspects dead that have sent no heartbeat since.
-- @suspects nvarchar(max)
-- sets 0
DECLARE @suspect TABLE (sidecar bigint NOT NULL PRIMARY KEY, heartbeats bigint NOT NULL, lease_ms bigint NOT NULL);
INSERT INTO @suspect (sidecar, heartbeats, lease_ms)
SELECT x.sidecar, x.heartbeats, x.lease_ms FROM OPENJSON(@suspects) WITH (sidecar bigint, heartbeats bigint, lease_ms bigint) AS x;
UPDATE h SET dead = 1
FROM @suspect AS x INNER JOIN {s}.qsidecar_sidecars AS h WITH (ROWLOCK, FORCESEEK) ON h.sidecar = x.sidecar
WHERE h.heartbeats = x.heartbeats AND h.dead = 0 AND (h.expires_at <= @now OR h.has_left = 0
  AND h.expires_at > DATEADD(second, CONVERT(int, x.lease_ms / 1000), DATEADD(millisecond, CONVERT(int, x.lease_ms % 1000), @now)))
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
