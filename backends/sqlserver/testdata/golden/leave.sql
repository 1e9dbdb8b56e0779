-- parameters: @beat_host bigint, @beat_name nvarchar(400), @beat_lease bigint, @beat_leader bigint, @beat_version nvarchar(64), @beat_leases bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @beat_made int;
UPDATE [qsidecar].qsidecar_sidecars SET name = @beat_name, heartbeats = heartbeats + 1, has_left = 1,
  expires_at = DATEADD(second, CONVERT(int, @beat_lease / 1000), DATEADD(millisecond, CONVERT(int, @beat_lease % 1000), @now)),
  timeout_ms = @beat_lease, stats_leader = CONVERT(tinyint, @beat_leader), version = @beat_version, leases = @beat_leases
WHERE sidecar = @beat_host AND dead = 0;
SET @beat_made = @@ROWCOUNT;
SELECT @beat_made AS made;
SELECT h.sidecar, h.heartbeats, DATEDIFF_BIG(millisecond, @now, h.expires_at) AS time_left, h.dead, h.has_left,
  COALESCE(h.timeout_ms, -1) AS timeout_ms, h.stats_leader, h.name, COALESCE(h.version, N'') AS version, COALESCE(h.leases, -1) AS leases
FROM [qsidecar].qsidecar_sidecars AS h
WHERE h.sidecar <> @beat_host
ORDER BY h.sidecar;
