-- Statements of the totals by hour: see backends.Historian.

-- name: add_hour
-- Adds to the totals of a queue in an hour.
INSERT INTO qsidecar_history (hour, queue, ready,
  enqueued, acked, failed, run_1ms, run_5ms, run_25ms, run_100ms, run_250ms, run_500ms, run_1s, run_2500ms,
  run_5s, run_10s, run_30s, run_1m, run_5m, run_30m, run_1h, run_more)
VALUES (:hour, :queue, :ready,
  :enqueued, :acked, :failed, :run_1ms, :run_5ms, :run_25ms, :run_100ms, :run_250ms, :run_500ms, :run_1s,
  :run_2500ms, :run_5s, :run_10s, :run_30s, :run_1m, :run_5m, :run_30m, :run_1h, :run_more)
ON DUPLICATE KEY UPDATE ready = GREATEST(ready, VALUES(ready)),
  enqueued = enqueued + VALUES(enqueued), acked = acked + VALUES(acked), failed = failed + VALUES(failed),
  run_1ms = run_1ms + VALUES(run_1ms), run_5ms = run_5ms + VALUES(run_5ms),
  run_25ms = run_25ms + VALUES(run_25ms), run_100ms = run_100ms + VALUES(run_100ms),
  run_250ms = run_250ms + VALUES(run_250ms), run_500ms = run_500ms + VALUES(run_500ms),
  run_1s = run_1s + VALUES(run_1s), run_2500ms = run_2500ms + VALUES(run_2500ms),
  run_5s = run_5s + VALUES(run_5s), run_10s = run_10s + VALUES(run_10s), run_30s = run_30s + VALUES(run_30s),
  run_1m = run_1m + VALUES(run_1m), run_5m = run_5m + VALUES(run_5m), run_30m = run_30m + VALUES(run_30m),
  run_1h = run_1h + VALUES(run_1h), run_more = run_more + VALUES(run_more)

-- name: forget_hours
DELETE FROM qsidecar_history WHERE hour < :before

-- name: hours
-- The totals of a queue, or of all if the name is empty.
SELECT hour, queue, ready,
  enqueued, acked, failed, run_1ms, run_5ms, run_25ms, run_100ms, run_250ms, run_500ms, run_1s, run_2500ms,
  run_5s, run_10s, run_30s, run_1m, run_5m, run_30m, run_1h, run_more
FROM qsidecar_history WHERE (:queue = '' OR queue = :queue) ORDER BY hour, queue
