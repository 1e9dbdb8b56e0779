-- Heartbeats, and the other sidecars.

-- name: join
-- A sidecar's first heartbeat. A second one is like renew.sql. All three heartbeats answer with
-- whether the sidecar is alive, then with the other sidecars.
-- @beat_host bigint
-- @beat_name nvarchar(400)
-- @beat_lease bigint
-- @beat_leader bigint
-- @beat_version nvarchar(64)
-- @beat_leases bigint
-- sets 2
DECLARE @beat_until datetime2(6) = DATEADD(second, CONVERT(int, @beat_lease / 1000), DATEADD(millisecond, CONVERT(int, @beat_lease % 1000), @now));
DECLARE @beat_made int;
BEGIN TRANSACTION;
UPDATE {s}.qsidecar_sidecars SET name = @beat_name, heartbeats = heartbeats + 1, expires_at = @beat_until,
  timeout_ms = @beat_lease, stats_leader = CONVERT(tinyint, @beat_leader), version = @beat_version, leases = @beat_leases
WHERE sidecar = @beat_host AND dead = 0 AND has_left = 0;
SET @beat_made = @@ROWCOUNT;
IF @beat_made = 0 AND NOT EXISTS (SELECT 1 FROM {s}.qsidecar_sidecars AS h WITH (UPDLOCK, HOLDLOCK, ROWLOCK) WHERE h.sidecar = @beat_host)
BEGIN
  INSERT INTO {s}.qsidecar_sidecars (sidecar, name, heartbeats, expires_at, timeout_ms, stats_leader, version, leases)
  VALUES (@beat_host, @beat_name, 1, @beat_until, @beat_lease, CONVERT(tinyint, @beat_leader), @beat_version, @beat_leases);
  SET @beat_made = 1;
END;
COMMIT TRANSACTION;
{beat_tail}

-- name: renew
-- A sidecar's heartbeat, unless it is marked dead.
-- @beat_host bigint
-- @beat_name nvarchar(400)
-- @beat_lease bigint
-- @beat_leader bigint
-- @beat_version nvarchar(64)
-- @beat_leases bigint
-- sets 2
DECLARE @beat_made int;
UPDATE {s}.qsidecar_sidecars SET name = @beat_name, heartbeats = heartbeats + 1,
  expires_at = DATEADD(second, CONVERT(int, @beat_lease / 1000), DATEADD(millisecond, CONVERT(int, @beat_lease % 1000), @now)),
  timeout_ms = @beat_lease, stats_leader = CONVERT(tinyint, @beat_leader), version = @beat_version, leases = @beat_leases
WHERE sidecar = @beat_host AND dead = 0 AND has_left = 0;
SET @beat_made = @@ROWCOUNT;
{beat_tail}

-- name: leave
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

-- fragment: beat_tail
SELECT @beat_made AS made;
SELECT h.sidecar, h.heartbeats, DATEDIFF_BIG(millisecond, @now, h.expires_at) AS time_left, h.dead, h.has_left,
  COALESCE(h.timeout_ms, -1) AS timeout_ms, h.stats_leader, h.name, COALESCE(h.version, N'') AS version, COALESCE(h.leases, -1) AS leases
FROM {s}.qsidecar_sidecars AS h
WHERE h.sidecar <> @beat_host
ORDER BY h.sidecar;
