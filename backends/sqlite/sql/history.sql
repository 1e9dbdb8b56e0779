-- Statements of the totals by hour: see backends.Historian.

-- name: add_hour
-- Adds to the totals of a queue in an hour.
INSERT INTO qsidecar_history AS h (hour, queue, ready,
  enqueued, acked, failed, run_1ms, run_5ms, run_25ms, run_100ms, run_250ms, run_500ms, run_1s, run_2500ms,
  run_5s, run_10s, run_30s, run_1m, run_5m, run_30m, run_1h, run_more)
VALUES (:hour, :queue, :ready,
  :enqueued, :acked, :failed, :run_1ms, :run_5ms, :run_25ms, :run_100ms, :run_250ms, :run_500ms, :run_1s,
  :run_2500ms, :run_5s, :run_10s, :run_30s, :run_1m, :run_5m, :run_30m, :run_1h, :run_more)
ON CONFLICT (hour, queue) DO UPDATE SET ready = max(h.ready, excluded.ready),
  enqueued = h.enqueued + excluded.enqueued, acked = h.acked + excluded.acked,
  failed = h.failed + excluded.failed, run_1ms = h.run_1ms + excluded.run_1ms,
  run_5ms = h.run_5ms + excluded.run_5ms, run_25ms = h.run_25ms + excluded.run_25ms,
  run_100ms = h.run_100ms + excluded.run_100ms, run_250ms = h.run_250ms + excluded.run_250ms,
  run_500ms = h.run_500ms + excluded.run_500ms, run_1s = h.run_1s + excluded.run_1s,
  run_2500ms = h.run_2500ms + excluded.run_2500ms, run_5s = h.run_5s + excluded.run_5s,
  run_10s = h.run_10s + excluded.run_10s, run_30s = h.run_30s + excluded.run_30s,
  run_1m = h.run_1m + excluded.run_1m, run_5m = h.run_5m + excluded.run_5m,
  run_30m = h.run_30m + excluded.run_30m, run_1h = h.run_1h + excluded.run_1h,
  run_more = h.run_more + excluded.run_more

-- name: forget_hours
DELETE FROM qsidecar_history WHERE hour < :before

-- name: hours
-- The totals of a queue, or of all if the name is empty.
SELECT hour, queue, ready,
  enqueued, acked, failed, run_1ms, run_5ms, run_25ms, run_100ms, run_250ms, run_500ms, run_1s, run_2500ms,
  run_5s, run_10s, run_30s, run_1m, run_5m, run_30m, run_1h, run_more
FROM qsidecar_history WHERE (:queue = '' OR queue = :queue) ORDER BY hour, queue
