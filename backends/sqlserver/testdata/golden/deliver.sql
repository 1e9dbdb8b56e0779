-- parameters: @deliver_leases nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 2
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @deliver TABLE (n int NOT NULL, id bigint NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL, worker nvarchar(400) NULL, ago_ms bigint NOT NULL);
INSERT INTO @deliver (n, id, sidecar, number, worker, ago_ms)
SELECT x.n, x.id, x.sidecar, x.number, x.worker, x.ago_ms
FROM OPENJSON(@deliver_leases) WITH (n int, id bigint, sidecar bigint, number bigint, worker nvarchar(4000), ago_ms bigint) AS x;
DECLARE @delivered TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET attempts = j.attempts + j.prefetched, prefetched = 0, prefetch_losses = 0, worker = COALESCE(j.worker, d.worker),
  deadline = CASE WHEN j.due_at IS NOT NULL OR j.deadline IS NULL THEN j.deadline WHEN DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - d.ago_ms <= 0 THEN @now ELSE DATEADD(second, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - d.ago_ms) / 1000), DATEADD(millisecond, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - d.ago_ms) % 1000), @now)) END, due_at = COALESCE(j.due_at, CASE WHEN j.due_at IS NOT NULL OR j.deadline IS NULL THEN j.deadline WHEN DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - d.ago_ms <= 0 THEN @now ELSE DATEADD(second, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - d.ago_ms) / 1000), DATEADD(millisecond, CONVERT(int, (DATEDIFF_BIG(millisecond, j.claimed_at, j.deadline) - d.ago_ms) % 1000), @now)) END)
OUTPUT inserted.id INTO @delivered
FROM @deliver AS d, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = d.id AND j.token_sidecar = d.sidecar AND j.token_number = d.number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @delivered);
SELECT d.n FROM @deliver AS d INNER JOIN @delivered AS y ON y.id = d.id;
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
