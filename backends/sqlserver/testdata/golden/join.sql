-- parameters: @beat_host bigint, @beat_name nvarchar(400), @beat_lease bigint
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
UPDATE [qsidecar].qsidecar_sidecars SET name = @beat_name, heartbeats = heartbeats + 1, expires_at = @beat_until
WHERE sidecar = @beat_host AND dead = 0 AND has_left = 0;
SET @beat_made = @@ROWCOUNT;
IF @beat_made = 0 AND NOT EXISTS (SELECT 1 FROM [qsidecar].qsidecar_sidecars AS h WITH (UPDLOCK, HOLDLOCK, ROWLOCK) WHERE h.sidecar = @beat_host)
BEGIN
  INSERT INTO [qsidecar].qsidecar_sidecars (sidecar, name, heartbeats, expires_at) VALUES (@beat_host, @beat_name, 1, @beat_until);
  SET @beat_made = 1;
END;
COMMIT TRANSACTION;
SELECT @beat_made AS made;
SELECT h.sidecar, h.heartbeats, DATEDIFF_BIG(millisecond, @now, h.expires_at) AS time_left, h.dead, h.name, h.has_left
FROM [qsidecar].qsidecar_sidecars AS h
WHERE h.sidecar <> @beat_host
ORDER BY h.sidecar;
