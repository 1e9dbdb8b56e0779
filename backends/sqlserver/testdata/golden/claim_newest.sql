-- parameters: @claim_max bigint, @claim_bytes bigint, @claim_payload bigint, @claim_host bigint, @claim_first bigint, @claim_segments nvarchar(max), @claim_policies nvarchar(max), @claim_slots nvarchar(max), @mark_handle bigint, @mark_lane int, @mark_number bigint
-- result sets: 3
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DECLARE @now datetime2(6) = [qsidecar].qsidecar_now();
DECLARE @wrote bigint = 0;
DECLARE @claim_segment TABLE (
  n int NOT NULL PRIMARY KEY, queue varchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL, policy int NOT NULL,
  highest smallint NOT NULL, lowest smallint NOT NULL, low bigint NOT NULL, high bigint NOT NULL);
INSERT INTO @claim_segment (n, queue, policy, highest, lowest, low, high)
SELECT x.n, x.queue, x.policy, x.highest, x.lowest, x.low, x.high
FROM OPENJSON(@claim_segments) WITH (n int, queue nvarchar(4000), policy int, highest smallint, lowest smallint, low bigint, high bigint) AS x;
DECLARE @claim_picked TABLE (
  id bigint NOT NULL PRIMARY KEY, segment int NOT NULL, policy int NOT NULL, priority smallint NOT NULL, place bigint NOT NULL, size bigint NOT NULL);
DECLARE @claim_left bigint = @claim_max;
DECLARE @claim_n int = 1;
DECLARE @claim_queue varchar(128);
DECLARE @claim_policy_n int;
DECLARE @claim_highest smallint;
DECLARE @claim_lowest smallint;
DECLARE @claim_low bigint;
DECLARE @claim_high bigint;
DECLARE @claim_next smallint;
WHILE @claim_left > 0
BEGIN
  SELECT @claim_queue = x.queue, @claim_policy_n = x.policy, @claim_highest = x.highest, @claim_lowest = x.lowest, @claim_low = x.low, @claim_high = x.high
  FROM @claim_segment AS x WHERE x.n = @claim_n;
  IF @@ROWCOUNT = 0
    BREAK;
  IF EXISTS (SELECT 1 FROM [qsidecar].qsidecar_queues AS q WHERE q.queue = @claim_queue AND q.paused = 1)
  BEGIN
    SET @claim_n = @claim_n + 1;
    CONTINUE;
  END;
  WHILE @claim_left > 0
  BEGIN
    SET @claim_next = NULL;
    SELECT TOP (1) @claim_next = j.priority
    FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @claim_queue AND j.priority <= @claim_highest
    ORDER BY j.priority DESC, j.position
    OPTION (KEEPFIXED PLAN);
    IF @claim_next IS NULL
      BREAK;
    INSERT INTO @claim_picked (id, segment, policy, priority, place, size)
    SELECT TOP (@claim_left) j.id, @claim_n, @claim_policy_n, j.priority, -j.position, CASE WHEN j.start_before <= @now THEN CONVERT(bigint, CASE WHEN j.on_expiry = 'delete' THEN 9223372036854775806 ELSE 9223372036854775807 END) ELSE DATALENGTH(j.payload) END
    FROM [qsidecar].qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL AND j.queue = @claim_queue AND j.priority = @claim_next
    ORDER BY j.position DESC
    OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN);
    SET @claim_left = @claim_left - @@ROWCOUNT;
    IF @claim_next = -32768
      BREAK;
    SET @claim_highest = @claim_next - 1;
  END;
  SET @claim_n = @claim_n + 1;
END;
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
  attempts = j.attempts + 1 - CASE WHEN (s.prefetched = 1 OR j.losses > 0 AND j.attempts + 1 >= COALESCE(j.max_attempts, p.max_attempts) AND s.lease_ms IS NULL) AND j.prefetch_losses < COALESCE(j.max_attempts, p.max_attempts) THEN 1 ELSE 0 END, prefetched = CASE WHEN (s.prefetched = 1 OR j.losses > 0 AND j.attempts + 1 >= COALESCE(j.max_attempts, p.max_attempts) AND s.lease_ms IS NULL) AND j.prefetch_losses < COALESCE(j.max_attempts, p.max_attempts) THEN 1 ELSE 0 END,
  claim_max = COALESCE(j.max_attempts, p.max_attempts),
  backoff_ms = p.backoff_ms, backoff_max_ms = p.backoff_max_ms, retention_done_ms = CASE WHEN j.retain_ms > COALESCE(p.retention_done_ms, 0) THEN j.retain_ms ELSE p.retention_done_ms END, retention_dead_ms = p.retention_dead_ms,
  token_sidecar = s.sidecar, token_number = s.number, lease_ms = s.lease_ms, worker = CASE WHEN j.losses > 0 AND j.attempts + 1 >= COALESCE(j.max_attempts, p.max_attempts) AND s.lease_ms IS NULL THEN NULL ELSE s.worker END,
  deadline = DATEADD(second, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) / 1000), DATEADD(millisecond, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) % 1000), @now)),
  due_at = CASE WHEN s.prefetched = 1 OR j.losses > 0 AND j.attempts + 1 >= COALESCE(j.max_attempts, p.max_attempts) AND s.lease_ms IS NULL THEN NULL WHEN s.ends IS NULL OR DATEADD(second, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) / 1000), DATEADD(millisecond, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) % 1000), @now)) <= s.ends
    THEN DATEADD(second, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) / 1000), DATEADD(millisecond, CONVERT(int, COALESCE(j.timeout_ms, p.timeout_ms) % 1000), @now)) ELSE s.ends END
OUTPUT inserted.id INTO @claim_taken
FROM @claim_chosen AS c, @claim_slot AS s, @claim_policy AS p, [qsidecar].qsidecar_jobs AS j WITH (ROWLOCK, FORCESEEK)
WHERE s.slot = c.slot AND p.policy = c.policy AND j.id = c.id AND j.state = 'ready' AND j.run_at IS NULL AND j.group_name IS NULL
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SET @wrote = @wrote + (SELECT COUNT(*) FROM @claim_taken);
SELECT c.slot, c.policy, j.position, j.id, j.priority, j.attempts + j.prefetched AS attempt, j.claim_max, j.fence, j.enqueued_at,
  COALESCE(j.timeout_ms, 0) AS timeout_ms, COALESCE(j.headers, N'') AS headers, COALESCE(j.[key], N'') AS name,
  COALESCE(j.last_error, N'') AS last_error, j.losses, COALESCE(j.admitted_group, N'') AS admitted_group, COALESCE(j.progress, 0) AS progress, CASE WHEN j.start_before IS NULL THEN 0 WHEN DATEDIFF_BIG(microsecond, @now, j.start_before) < 1000 THEN 1 ELSE DATEDIFF_BIG(microsecond, @now, j.start_before) / 1000 END AS start_within, j.payload
FROM @claim_taken AS t
INNER JOIN @claim_chosen AS c ON c.id = t.id
INNER JOIN [qsidecar].qsidecar_jobs AS j WITH (FORCESEEK) ON j.id = t.id
OPTION (LOOP JOIN, FORCE ORDER, KEEPFIXED PLAN);
SELECT 0 AS policy, COUNT_BIG(*) AS id, CONVERT(bigint, 0) AS size FROM @claim_chosen AS c
UNION ALL
SELECT p.policy, p.id, p.size FROM @claim_picked AS p
WHERE NOT EXISTS (SELECT 1 FROM @claim_chosen AS c WHERE c.id = p.id);
IF @wrote > 0
BEGIN
  UPDATE [qsidecar].qsidecar_commits SET number = @mark_number, at = @now
  WHERE handle = @mark_handle AND pipeline = @mark_lane AND number <= @mark_number;
  IF @@ROWCOUNT = 0
    INSERT INTO [qsidecar].qsidecar_commits (handle, pipeline, number, at) VALUES (@mark_handle, @mark_lane, @mark_number, @now);
END;
SELECT @wrote AS wrote;
