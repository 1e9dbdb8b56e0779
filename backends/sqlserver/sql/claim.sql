-- A claim, oldest first. Its segments are pieces of the index of ready jobs, in the order in
-- which they are read. A segment is a part of one priority, after a position up to another
-- (highest = lowest), or all of some priorities. Each is one scan in the index's own order.
-- TOP stops the scan, and the locking, at the last row that is needed. Without OPTIMIZE FOR
-- the server plans a variable TOP for a hundred rows, and can lock more rows than it returns.
-- The locks keep other claims away. For a server without such hints the UPDATE checks the
-- state again.
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
  IF @claim_highest = @claim_lowest
    INSERT INTO @claim_picked (id, segment, policy, priority, place, size)
    SELECT TOP (@claim_left) j.id, @claim_n, @claim_policy_n, j.priority, j.position, DATALENGTH(j.payload)
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.queue = @claim_queue AND j.priority = @claim_highest
      AND j.position > @claim_low AND j.position <= @claim_high
    ORDER BY j.position
    OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN);
  ELSE
    INSERT INTO @claim_picked (id, segment, policy, priority, place, size)
    SELECT TOP (@claim_left) j.id, @claim_n, @claim_policy_n, j.priority, j.position, DATALENGTH(j.payload)
    FROM {s}.qsidecar_jobs AS j WITH (INDEX (qsidecar_ready), FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    WHERE j.state = 'ready' AND j.run_at IS NULL AND j.queue = @claim_queue AND j.priority <= @claim_highest AND j.priority >= @claim_lowest
    ORDER BY j.priority DESC, j.position
    OPTION (OPTIMIZE FOR (@claim_left = 1), KEEPFIXED PLAN);
  SET @claim_left = @claim_left - @@ROWCOUNT;
  SET @claim_n = @claim_n + 1;
END;
{claim_tail}
