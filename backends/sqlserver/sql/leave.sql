-- A sidecar's last heartbeat.
-- @beat_host bigint
-- @beat_name nvarchar(400)
-- @beat_lease bigint
-- @beat_leader bigint
-- @beat_version nvarchar(64)
-- @beat_leases bigint
-- sets 2
DECLARE @beat_made int;
UPDATE {s}.qsidecar_sidecars SET name = @beat_name, heartbeats = heartbeats + 1, has_left = 1,
  expires_at = DATEADD(second, CONVERT(int, @beat_lease / 1000), DATEADD(millisecond, CONVERT(int, @beat_lease % 1000), @now)),
  timeout_ms = @beat_lease, stats_leader = CONVERT(tinyint, @beat_leader), version = @beat_version, leases = @beat_leases
WHERE sidecar = @beat_host AND dead = 0;
SET @beat_made = @@ROWCOUNT;
{beat_tail}
