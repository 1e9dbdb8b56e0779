-- Statistics and lists of jobs. Claimed jobs are in one `segment` for each sidecar.

-- name: queues_paused
SELECT queue FROM qsidecar_queues WHERE paused

-- name: queues_claimed
SELECT queue, COUNT(*), MIN(claimed_at), {now} FROM {jobs} WHERE segment > 'c' AND segment < 'd' GROUP BY queue

-- name: count_claimed
SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment > 'c' AND segment < 'd' AND queue = :queue LIMIT :limit) AS x

-- name: count_segment
SELECT COUNT(*) FROM (SELECT 1 FROM {jobs} WHERE segment = :segment LIMIT :limit) AS x

-- name: oldest_ready
-- The first row of the next priority. Within a priority, positions are given in the order in which rows become ready.
SELECT urgency, ready_at, {now} FROM {jobs} WHERE segment = :segment AND urgency > :after ORDER BY urgency, sort_key, id LIMIT 1

-- name: peek_claimed
SELECT id, {bytes} + COALESCE(LENGTH(result), 0) FROM {jobs}
WHERE segment > 'c' AND segment < 'd' AND queue = :queue AND (claimed_at > :after_at OR claimed_at = :after_at AND id > :after_id)
ORDER BY claimed_at, id LIMIT :limit

-- name: key_holder
SELECT job FROM qsidecar_keys WHERE queue = :queue AND `key` = :key

-- name: claimed_by
SELECT id, token_sidecar, token_number, queue, lease_ms IS NOT NULL FROM {jobs}
WHERE segment = :segment AND id > :after ORDER BY id LIMIT :limit

-- name: keys_taken
-- Whether a retry of all dead jobs of a queue would give one a key that another job has, or two of them the same key.
SELECT EXISTS (SELECT 1 FROM {jobs} INNER JOIN qsidecar_keys k ON k.queue = qsidecar_jobs.queue AND k.`key` = qsidecar_jobs.`key`
    WHERE segment = :segment AND k.job NOT IN (0, qsidecar_jobs.id) AND (k.expires_at > {now}
      OR k.state IS NULL AND EXISTS (SELECT 1 FROM qsidecar_jobs j WHERE j.id = k.job)))
  OR EXISTS (SELECT 1 FROM {jobs} WHERE segment = :segment AND `key` IS NOT NULL GROUP BY `key` HAVING COUNT(*) > 1)
