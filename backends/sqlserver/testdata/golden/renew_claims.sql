-- parameters: @renewal_claims nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @renewal TABLE (
  n int NOT NULL, id bigint NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL, attempts int NOT NULL, ago_ms bigint NOT NULL, lease_ms bigint NULL,
  owner bigint NOT NULL, new_due tinyint NOT NULL, ends datetime2(6) NULL, set_worker tinyint NOT NULL, worker nvarchar(400) NULL);
INSERT INTO @renewal (n, id, sidecar, number, attempts, ago_ms, lease_ms, owner, new_due, ends, set_worker, worker)
SELECT x.n, x.id, x.sidecar, x.number, x.attempts, x.ago_ms, x.lease_ms, x.owner, x.new_due,
  DATEADD(second, CONVERT(int, x.lease_ms / 1000), DATEADD(millisecond, CONVERT(int, x.lease_ms % 1000), @now)), x.set_worker, x.worker
FROM OPENJSON(@renewal_claims) WITH (
  n int, id bigint, sidecar bigint, number bigint, attempts int, ago_ms bigint, lease_ms bigint, owner bigint, new_due tinyint, set_worker tinyint,
  worker nvarchar(4000)) AS x;
DECLARE @renewed TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET attempts = r.attempts, prefetched = 0, prefetch_losses = 0, lease_ms = r.lease_ms, owner = r.owner,
  deadline = CASE WHEN j.due_at IS NOT NULL OR j.deadline IS NULL THEN j.deadline WHEN DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms <= 0 THEN @now ELSE DATEADD(second, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms) / 1000), DATEADD(millisecond, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms) % 1000), @now)) END,
  due_at = CASE WHEN r.new_due = 0 THEN COALESCE(j.due_at, CASE WHEN j.due_at IS NOT NULL OR j.deadline IS NULL THEN j.deadline WHEN DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms <= 0 THEN @now ELSE DATEADD(second, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms) / 1000), DATEADD(millisecond, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms) % 1000), @now)) END) WHEN j.deadline IS NULL OR r.ends < CASE WHEN j.due_at IS NOT NULL OR j.deadline IS NULL THEN j.deadline WHEN DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms <= 0 THEN @now ELSE DATEADD(second, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms) / 1000), DATEADD(millisecond, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms) % 1000), @now)) END THEN r.ends
    ELSE CASE WHEN j.due_at IS NOT NULL OR j.deadline IS NULL THEN j.deadline WHEN DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms <= 0 THEN @now ELSE DATEADD(second, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms) / 1000), DATEADD(millisecond, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - r.ago_ms) % 1000), @now)) END END,
  worker = CASE WHEN r.set_worker = 1 THEN r.worker ELSE j.worker END
OUTPUT inserted.id INTO @renewed
FROM @renewal AS r, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = r.id AND j.token_sidecar = r.sidecar AND j.token_number = r.number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @renewed);
SELECT r.n FROM @renewal AS r INNER JOIN @renewed AS y ON y.id = r.id;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
