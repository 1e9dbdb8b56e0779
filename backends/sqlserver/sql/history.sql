-- Statements of the totals by hour: see backends.Historian.

-- name: add_hour
-- Adds to the totals of a queue in an hour. HOLDLOCK: of two that find no row, one waits and then finds it.
-- @hour_hour bigint
-- @hour_queue varchar(128)
-- @hour_ready bigint
-- @hour_enqueued bigint
-- @hour_acked bigint
-- @hour_failed bigint
-- @hour_run_1ms bigint
-- @hour_run_5ms bigint
-- @hour_run_25ms bigint
-- @hour_run_100ms bigint
-- @hour_run_250ms bigint
-- @hour_run_500ms bigint
-- @hour_run_1s bigint
-- @hour_run_2500ms bigint
-- @hour_run_5s bigint
-- @hour_run_10s bigint
-- @hour_run_30s bigint
-- @hour_run_1m bigint
-- @hour_run_5m bigint
-- @hour_run_30m bigint
-- @hour_run_1h bigint
-- @hour_run_more bigint
-- sets 0
UPDATE h SET ready = CASE WHEN h.ready < @hour_ready THEN @hour_ready ELSE h.ready END,
  enqueued = h.enqueued + @hour_enqueued, acked = h.acked + @hour_acked, failed = h.failed + @hour_failed,
  run_1ms = h.run_1ms + @hour_run_1ms, run_5ms = h.run_5ms + @hour_run_5ms,
  run_25ms = h.run_25ms + @hour_run_25ms, run_100ms = h.run_100ms + @hour_run_100ms,
  run_250ms = h.run_250ms + @hour_run_250ms, run_500ms = h.run_500ms + @hour_run_500ms,
  run_1s = h.run_1s + @hour_run_1s, run_2500ms = h.run_2500ms + @hour_run_2500ms,
  run_5s = h.run_5s + @hour_run_5s, run_10s = h.run_10s + @hour_run_10s, run_30s = h.run_30s + @hour_run_30s,
  run_1m = h.run_1m + @hour_run_1m, run_5m = h.run_5m + @hour_run_5m, run_30m = h.run_30m + @hour_run_30m,
  run_1h = h.run_1h + @hour_run_1h, run_more = h.run_more + @hour_run_more
FROM {s}.qsidecar_history AS h WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
WHERE h.hour = @hour_hour AND h.queue = @hour_queue
OPTION (LOOP JOIN, KEEPFIXED PLAN);
IF @@ROWCOUNT = 0
  INSERT INTO {s}.qsidecar_history (hour, queue, ready,
  enqueued, acked, failed, run_1ms, run_5ms, run_25ms, run_100ms, run_250ms, run_500ms, run_1s, run_2500ms,
  run_5s, run_10s, run_30s, run_1m, run_5m, run_30m, run_1h, run_more)
  VALUES (@hour_hour, @hour_queue, @hour_ready,
  @hour_enqueued, @hour_acked, @hour_failed, @hour_run_1ms, @hour_run_5ms, @hour_run_25ms, @hour_run_100ms,
  @hour_run_250ms, @hour_run_500ms, @hour_run_1s, @hour_run_2500ms, @hour_run_5s, @hour_run_10s,
  @hour_run_30s, @hour_run_1m, @hour_run_5m, @hour_run_30m, @hour_run_1h, @hour_run_more);
SET @wrote = @wrote + 1;

-- name: forget_hours
-- Deletes the totals of hours before one.
-- @forget_before bigint
-- sets 0
DELETE FROM {s}.qsidecar_history WHERE hour < @forget_before;
SET @wrote = @wrote + @@ROWCOUNT;

-- name: clock
-- The time of the server's clock.
-- sets 1
SELECT @now AS at;

-- name: hours
-- The totals of a queue, or of all if the name is empty.
-- @hours_queue varchar(128)
-- sets 1
SELECT h.hour, h.queue, h.ready,
  h.enqueued, h.acked, h.failed, h.run_1ms, h.run_5ms, h.run_25ms, h.run_100ms, h.run_250ms, h.run_500ms,
  h.run_1s, h.run_2500ms, h.run_5s, h.run_10s, h.run_30s, h.run_1m, h.run_5m, h.run_30m, h.run_1h, h.run_more
FROM {s}.qsidecar_history AS h
WHERE (@hours_queue = '' OR h.queue = @hours_queue)
ORDER BY h.hour, h.queue;
