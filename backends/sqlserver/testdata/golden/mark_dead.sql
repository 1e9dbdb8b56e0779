-- parameters: @suspects nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 1
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @suspect TABLE (sidecar bigint NOT NULL PRIMARY KEY, heartbeats bigint NOT NULL, lease_ms bigint NOT NULL);
INSERT INTO @suspect (sidecar, heartbeats, lease_ms)
SELECT x.sidecar, x.heartbeats, x.lease_ms FROM OPENJSON(@suspects) WITH (sidecar bigint, heartbeats bigint, lease_ms bigint) AS x;
UPDATE h SET dead = 1
FROM @suspect AS x INNER JOIN [qsidecar].qsidecar_sidecars AS h WITH (ROWLOCK, FORCESEEK) ON h.sidecar = x.sidecar
WHERE h.heartbeats = x.heartbeats AND h.dead = 0 AND (h.expires_at <= @now OR h.has_left = 0
  AND h.expires_at > DATEADD(second, CONVERT(int, x.lease_ms / 1000), DATEADD(millisecond, CONVERT(int, x.lease_ms % 1000), @now)))
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + @@ROWCOUNT;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
