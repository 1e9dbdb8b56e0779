-- parameters: @beat_host bigint, @beat_name nvarchar(400), @beat_lease bigint, @beat_leader bigint, @beat_version nvarchar(64), @beat_leases bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @beat_until datetime2(6) = DATEADD(second, CONVERT(int, @beat_lease / 1000), DATEADD(millisecond, CONVERT(int, @beat_lease % 1000), @now));
DECLARE @beat_made int;
BEGIN TRANSACTION;
UPDATE [qsidecar].qsidecar_sidecars SET name = @beat_name, heartbeats = heartbeats + 1, expires_at = @beat_until,
  timeout_ms = @beat_lease, stats_leader = CONVERT(tinyint, @beat_leader), version = @beat_version, leases = @beat_leases
WHERE sidecar = @beat_host AND dead = 0 AND has_left = 0;
SET @beat_made = @@ROWCOUNT;
IF @beat_made = 0 AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_sidecars AS h WITH (UPDLOCK, HOLDLOCK, ROWLOCK) WHERE h.sidecar = @beat_host)
BEGIN
  INSERT INTO [qsidecar].qsidecar_sidecars (sidecar, name, heartbeats, expires_at, timeout_ms, stats_leader, version, leases)
  VALUES (@beat_host, @beat_name, 1, @beat_until, @beat_lease, CONVERT(tinyint, @beat_leader), @beat_version, @beat_leases);
  SET @beat_made = 1;
END;
COMMIT TRANSACTION;
SELECT @beat_made AS made;
SELECT h.sidecar, h.heartbeats, DATEDIFF_BIG(millisecond, @now, h.expires_at) AS time_left, h.dead, h.has_left,
  COALESCE(h.timeout_ms, -1) AS timeout_ms, h.stats_leader, h.name, COALESCE(h.version, N'') AS version, COALESCE(h.leases, -1) AS leases
FROM [qsidecar].qsidecar_sidecars AS h
WHERE h.sidecar <> @beat_host
ORDER BY h.sidecar;
