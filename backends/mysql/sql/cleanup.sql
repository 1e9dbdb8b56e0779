-- Rows that maintenance finds by walking through tables, part by part.

-- name: failures_after
-- The second column is NULL if the job is gone.
SELECT f.job, (SELECT 1 FROM qsidecar_jobs j WHERE j.id = f.job) FROM qsidecar_failures f WHERE f.job > :job ORDER BY f.job LIMIT :limit

-- name: admitted_after
-- The last column is NULL if the job has no slot any more.
SELECT a.queue, a.group_name, a.job, (SELECT 1 FROM qsidecar_jobs j WHERE j.id = a.job AND j.admitted_group = a.group_name)
FROM qsidecar_admitted a
WHERE a.queue > :queue OR a.queue = :queue AND (a.group_name > :group OR a.group_name = :group AND a.job > :job)
ORDER BY a.queue, a.group_name, a.job LIMIT :limit

-- name: described
SELECT COUNT(*) FROM qsidecar_meta

-- name: describe
INSERT IGNORE INTO qsidecar_meta (singleton, version, min_program, `database`) VALUES (1, :version, :min_program, :database)

-- name: scheduled_after
-- The next queue with scheduled jobs, and whether qsidecar_queues has it.
SELECT x.queue, (SELECT 1 FROM qsidecar_queues q WHERE q.queue = x.queue)
FROM (SELECT queue FROM {jobs} WHERE segment > :segment AND segment < 't' ORDER BY segment LIMIT 1) AS x

-- name: keys_after
SELECT k.queue, k.`key`, k.job, k.state, COALESCE((SELECT j.state FROM qsidecar_jobs j WHERE j.id = k.job), 'deleted')
FROM qsidecar_keys k WHERE k.queue > :queue OR k.queue = :queue AND k.`key` > :key ORDER BY k.queue, k.`key` LIMIT :limit

-- name: end_key
UPDATE qsidecar_keys SET state = :state WHERE queue = :queue AND `key` = :key AND job = :job AND state IS NULL

-- name: old_commits
SELECT 1 FROM qsidecar_commits WHERE at < {now} - INTERVAL {counter_days} DAY LIMIT :limit

-- name: delete_old_commits
DELETE FROM qsidecar_commits WHERE at < {now} - INTERVAL {counter_days} DAY LIMIT :limit

-- name: registered_after
-- The last column is NULL if the queue has no scheduled job.
SELECT q.queue, q.requeues, q.paused, (SELECT 1 FROM {jobs} WHERE segment = CONCAT('s', q.queue) LIMIT 1)
FROM qsidecar_queues q WHERE q.queue > :after ORDER BY q.queue LIMIT :limit

-- name: unregister
DELETE FROM qsidecar_queues WHERE queue = :queue AND requeues = :requeues AND NOT paused AND max_claimed IS NULL AND rate IS NULL
  AND group_limit IS NULL AND group_skips IS NULL AND group_ready IS NULL

-- name: unreadable_headers
-- Headers that prevent changes of a row on MariaDB: see headers.go.
SELECT id FROM qsidecar_jobs WHERE headers IS NOT NULL AND COALESCE(JSON_TYPE(headers), '') <> 'OBJECT' LIMIT 1000

-- name: replace_headers
UPDATE qsidecar_jobs SET headers = JSON_OBJECT('', CONVERT(headers USING utf8mb4)) WHERE id IN (:ids)
