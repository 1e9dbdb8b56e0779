-- Writes claims that go on, whose rows are locked. Their workers have the jobs for
-- certain. The end of a timed lease moves if new_due is 1. It answers with the numbers
-- of the claims that it changed.
-- @renewal_claims nvarchar(max)
-- sets 1
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
  deadline = {renewal_end},
  due_at = CASE WHEN r.new_due = 0 THEN COALESCE(j.due_at, {renewal_end}) WHEN j.deadline IS NULL OR r.ends < {renewal_end} THEN r.ends
    ELSE {renewal_end} END,
  worker = CASE WHEN r.set_worker = 1 THEN r.worker ELSE j.worker END
OUTPUT inserted.id INTO @renewed
FROM @renewal AS r, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE j.id = r.id AND j.token_sidecar = r.sidecar AND j.token_number = r.number
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @renewed);
SELECT r.n FROM @renewal AS r INNER JOIN @renewed AS y ON y.id = r.id;
