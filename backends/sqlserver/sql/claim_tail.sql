-- The end of every claim. The i-th row that fits belongs to the i-th slot. Rows that are too
-- large, or that exceed the limit of bytes, stay locked and unchanged. It answers with the
-- claimed rows, then with the other locked rows (policy 0: how many were to be claimed).
DECLARE @claim_slot TABLE (
  slot int NOT NULL PRIMARY KEY, sidecar bigint NOT NULL, number bigint NOT NULL, lease_ms bigint NULL, ends datetime2(6) NULL,
  worker nvarchar(400) NULL, prefetched tinyint NOT NULL);
INSERT INTO @claim_slot (slot, sidecar, number, lease_ms, ends, worker, prefetched)
SELECT x.slot, x.sidecar, x.number, x.lease_ms,
  DATEADD(second, CONVERT(int, x.lease_ms / 1000), DATEADD(millisecond, CONVERT(int, x.lease_ms % 1000), @now)), x.worker, x.prefetched
FROM OPENJSON(@claim_slots) WITH (slot int, sidecar bigint, number bigint, lease_ms bigint, worker nvarchar(4000), prefetched tinyint) AS x;
DECLARE @claim_policy TABLE (
  policy int NOT NULL PRIMARY KEY, max_attempts int NOT NULL, timeout_ms bigint NULL, backoff_ms bigint NOT NULL, backoff_max_ms bigint NOT NULL,
  retention_done_ms bigint NULL, retention_dead_ms bigint NULL);
INSERT INTO @claim_policy (policy, max_attempts, timeout_ms, backoff_ms, backoff_max_ms, retention_done_ms, retention_dead_ms)
SELECT x.policy, x.max_attempts, x.timeout_ms, x.backoff_ms, x.backoff_max_ms, x.retention_done_ms, x.retention_dead_ms
FROM OPENJSON(@claim_policies) WITH (
  policy int, max_attempts int, timeout_ms bigint, backoff_ms bigint, backoff_max_ms bigint, retention_done_ms bigint, retention_dead_ms bigint) AS x;
DECLARE @claim_micros bigint = DATEDIFF_BIG(microsecond, '1970-01-01', @now);
DECLARE @claim_chosen TABLE (id bigint NOT NULL PRIMARY KEY, slot int NOT NULL, policy int NOT NULL);
INSERT INTO @claim_chosen (id, slot, policy)
SELECT w.id, w.slot, w.policy
FROM (
  SELECT p.id, p.policy, p.size,
    SUM(CASE WHEN p.size <= @claim_payload THEN p.size ELSE 0 END) OVER (ORDER BY p.segment, p.priority DESC, p.place ROWS UNBOUNDED PRECEDING) AS total,
    SUM(CASE WHEN p.size <= @claim_payload THEN 1 ELSE 0 END) OVER (ORDER BY p.segment, p.priority DESC, p.place ROWS UNBOUNDED PRECEDING) AS slot
  FROM @claim_picked AS p
) AS w
WHERE w.size <= @claim_payload AND (w.total <= @claim_bytes OR (w.slot = 1 AND @claim_first = 1));
DECLARE @claim_taken TABLE (id bigint NOT NULL PRIMARY KEY);
UPDATE j SET state = 'claimed', owner = @claim_host, claimed_at = @now,
  fence = CASE WHEN j.fence >= @claim_micros THEN j.fence + 1 ELSE @claim_micros END,
  attempts = j.attempts + 1 - {uncharged}, prefetched = {uncharged},
  claim_max = COALESCE(j.max_attempts, p.max_attempts),
  backoff_ms = p.backoff_ms, backoff_max_ms = p.backoff_max_ms, retention_done_ms = p.retention_done_ms, retention_dead_ms = p.retention_dead_ms,
  token_sidecar = s.sidecar, token_number = s.number, lease_ms = s.lease_ms, worker = CASE WHEN {alone} THEN NULL ELSE s.worker END,
  deadline = {deadline},
  due_at = CASE WHEN s.prefetched = 1 OR {alone} THEN NULL WHEN s.ends IS NULL OR {deadline} <= s.ends
    THEN {deadline} ELSE s.ends END
OUTPUT inserted.id INTO @claim_taken
FROM @claim_chosen AS c, @claim_slot AS s, @claim_policy AS p, {s}.qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE s.slot = c.slot AND p.policy = c.policy AND j.id = c.id AND j.state = 'ready' AND j.run_at IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @claim_taken);
SELECT c.slot, c.policy, j.position, j.id, j.priority, j.attempts + j.prefetched AS attempt, j.claim_max, j.fence, j.enqueued_at,
  COALESCE(j.timeout_ms, 0) AS timeout_ms, COALESCE(j.headers, N'') AS headers, COALESCE(j.[key], N'') AS name,
  COALESCE(j.last_error, N'') AS last_error, j.losses, j.payload
FROM @claim_taken AS t
INNER JOIN @claim_chosen AS c ON c.id = t.id
INNER JOIN {s}.qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = t.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT 0 AS policy, COUNT_BIG(*) AS id, CONVERT(bigint, 0) AS size FROM @claim_chosen AS c
UNION ALL
SELECT p.policy, p.id, p.size FROM @claim_picked AS p
WHERE NOT EXISTS (SELECT 1 FROM @claim_chosen AS c WHERE c.id = p.id);
