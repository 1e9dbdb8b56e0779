-- parameters: @extend_leases nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @extend TABLE (
  n int NOT NULL, id bigint NOT NULL PRIMARY KEY, host bigint NOT NULL, number bigint NOT NULL, lease_ms bigint NULL, bind bigint NULL, worker nvarchar(400) NULL);
INSERT INTO @extend (n, id, host, number, lease_ms, bind, worker)
SELECT x.n, x.id, x.host, x.number, x.lease_ms, x.bind, x.worker
FROM OPENJSON(@extend_leases) WITH (n int, id bigint, host bigint, number bigint, lease_ms bigint, bind bigint, worker nvarchar(4000)) AS x;
DECLARE @extended TABLE (id bigint NOT NULL PRIMARY KEY, deadline datetime2(6) NULL, ends datetime2(6) NULL, lease_ms bigint NULL, told tinyint NOT NULL);
INSERT INTO @extended (id, deadline, ends, lease_ms, told)
SELECT j.id, j.deadline, DATEADD(second, CONVERT(int, COALESCE(e.lease_ms, j.lease_ms) / 1000),
    DATEADD(millisecond, CONVERT(int, COALESCE(e.lease_ms, j.lease_ms) % 1000), @now)), COALESCE(e.lease_ms, j.lease_ms),
  CASE WHEN j.ahead = 0 AND j.unrecorded = 0 THEN 1 ELSE 0 END
FROM @extend AS e INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (UPDLOCK, ROWLOCK, FORCESEEK) ON j.id = e.id
WHERE j.token_host = e.host AND j.token_number = e.number
OPTION (LOOP JOIN, FORCE ORDER);
UPDATE j SET attempts = j.attempts + j.ahead, ahead = 0, unrecorded = 0,
  lease_ms = CASE WHEN e.bind IS NULL THEN y.lease_ms END,
  due_at = CASE WHEN e.bind IS NULL AND (y.deadline IS NULL OR y.ends < y.deadline) THEN y.ends ELSE y.deadline END,
  owner = COALESCE(e.bind, j.owner),
  worker = CASE WHEN e.bind IS NULL THEN j.worker ELSE e.worker END
FROM @extend AS e
INNER JOIN @extended AS y ON y.id = e.id
INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK) ON j.id = e.id
WHERE j.token_host = e.host AND j.token_number = e.number AND (e.bind IS NOT NULL OR y.lease_ms IS NOT NULL OR y.told = 0)
OPTION (LOOP JOIN, FORCE ORDER);
SET @wrote = @wrote + @@ROWCOUNT;
SELECT e.n FROM @extend AS e INNER JOIN @extended AS y ON y.id = e.id;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND lane = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, lane, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
