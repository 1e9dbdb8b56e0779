-- A claim, newest first. It reads one priority after the other, because one scan of an index
-- has one direction. Its segments are whole queues.
-- @claim_max bigint
-- @claim_bytes bigint
-- @claim_payload bigint
-- @claim_host bigint
-- @claim_first bigint
-- @claim_segments nvarchar(max)
-- @claim_policies nvarchar(max)
-- @claim_slots nvarchar(max)
-- sets 2
{claim_head}
DECLARE @claim_next smallint;
WHILE @claim_left > 0
BEGIN
  SELECT @claim_queue = x.queue, @claim_policy_n = x.policy, @claim_highest = x.highest, @claim_lowest = x.lowest, @claim_low = x.low, @claim_high = x.high
  FROM @claim_segment AS x WHERE x.n = @claim_n;
  IF @@ROWCOUNT = 0
    BREAK;
  IF EXISTS (SELECT 1 FROM {s}.qsidecar_queues AS q WHERE q.queue = @claim_queue AND q.paused = 1)
  BEGIN
    SET @claim_n = @claim_n + 1;
    CONTINUE;
  END;
  WHILE @claim_left > 0
  BEGIN
    SET @claim_next = NULL;
    SELECT TOP (1) @claim_next = j.priority
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.queue = @claim_queue AND j.priority <= @claim_highest
    ORDER BY j.priority DESC, j.position
    OPTION (KEEPFIXED PLAN);
    IF @claim_next IS NULL
      BREAK;
    INSERT INTO @claim_picked (id, segment, policy, priority, place, size)
    SELECT TOP (@claim_left) j.id, @claim_n, @claim_policy_n, j.priority, -j.position, DATALENGTH(j.payload)
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.queue = @claim_queue AND j.priority = @claim_next
    ORDER BY j.position DESC
    OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN);
    SET @claim_left = @claim_left - @@ROWCOUNT;
    IF @claim_next = -32768
      BREAK;
    SET @claim_highest = @claim_next - 1;
  END;
  SET @claim_n = @claim_n + 1;
END;
{claim_tail}
