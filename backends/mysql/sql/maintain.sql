-- Statements of maintenance.

-- name: due_now
-- A scan for due work is one statement, which joins these parts by UNION ALL. Each row is a kind, a name, and a number. This
-- part is the first one.
SELECT 'now' AS kind, '' AS name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {now}) AS n

-- name: due_arrived
-- Whether there are plain INSERTs with a run_at or start_before.
SELECT 'arrived', '', 1 FROM (SELECT 1 FROM {jobs} WHERE segment = 'n' LIMIT 1) AS x

-- name: due_groups
-- Whether there are blocked jobs, or limits of groups, which an operator can have lowered.
SELECT 'groups', '', 1 FROM DUAL WHERE EXISTS (SELECT 1 FROM {jobs} WHERE segment > 'a' AND segment < 'c')
  OR EXISTS (SELECT 1 FROM qsidecar_queues WHERE group_limit IS NOT NULL OR group_ready IS NOT NULL OR limits_at > {now} - INTERVAL 1 HOUR)

-- name: due_sidecars
SELECT IF(dead, 'dead', 'alive'), '', sidecar FROM qsidecar_sidecars

-- name: due_owner
-- An owner that is not one of the sidecars. :gaps are the gaps between the values of `segment` of their claims.
SELECT 'owner', '', x.owner FROM (SELECT {no_pushdown} owner FROM {jobs} WHERE :gaps ORDER BY segment LIMIT 1) AS x

-- name: due_schedule
SELECT 'schedule', '', x.at FROM (SELECT next_at AS at FROM qsidecar_schedules WHERE next_at IS NOT NULL AND adopted <= :schedules ORDER BY next_at LIMIT 1) AS x

-- name: due_batches
-- Whether there are batches that can possibly end, or be deleted.
SELECT 'batches', '', 1 FROM DUAL WHERE EXISTS (SELECT 1 FROM qsidecar_batch_notes) OR EXISTS (SELECT 1 FROM qsidecar_batches FORCE INDEX (qsidecar_batches_state) WHERE state IN ('closed', 'cancelling'))
  OR EXISTS (SELECT 1 FROM qsidecar_batches FORCE INDEX (qsidecar_batches_expire) WHERE expires_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {now}) DIV 1000)

-- name: due_never
-- `sort_key` is NULL for a date that does not exist, which a session that is not strict can store.
SELECT 'never', '', x.id FROM (SELECT (SELECT j.id FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_segments)
    WHERE j.segment = CONCAT('s', q.queue) AND j.urgency = 0 AND j.sort_key IS NULL LIMIT 1) AS id FROM qsidecar_queues AS q) AS x
WHERE x.id IS NOT NULL

-- name: due_expired
SELECT 'expired', '', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', x.at)
FROM (SELECT prune_at AS at FROM qsidecar_prunable WHERE prune_at >= :from AND prune_at <= {now} ORDER BY prune_at LIMIT 1) AS x

-- name: due_expiring
SELECT 'expiring', '', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', x.at)
FROM (SELECT start_before AS at FROM qsidecar_expiring WHERE start_before >= :from ORDER BY start_before LIMIT 1) AS x

-- name: due_keys
SELECT 'keys', '', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', x.at)
FROM (SELECT prune_at AS at FROM {prunable_keys_index} WHERE prune_at >= :from AND prune_at <= {now} ORDER BY prune_at LIMIT 1) AS x

-- name: due_cancelled
SELECT 'cancelled', CONVERT(token_sidecar USING ascii) COLLATE ascii_bin, token_number FROM qsidecar_cancelled WHERE owner = :owner

-- name: due_ready
(SELECT {no_pushdown} 'ready', :queue, 1 FROM {jobs} WHERE {in_segment} AND :where LIMIT 1)

-- name: due_requeues
SELECT 'requeues', queue, requeues FROM qsidecar_queues WHERE queue IN (:queues)

-- fragment: first_due
-- The first row of one `segment`. :from is IS NOT NULL, or >= and a number.
(SELECT {no_pushdown} '{kind}', :name, sort_key FROM {jobs} WHERE {in_segment} AND urgency = 0 AND sort_key :from ORDER BY {in_order} LIMIT 1)

-- fragment: first_due_of_each
-- The first row of each `segment` that {of} names.
SELECT '{kind}', x.name, x.sort_key FROM (SELECT {name_of} AS name, (SELECT j.sort_key FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_segments)
    WHERE j.segment = {segment_of} AND j.urgency = 0 AND j.sort_key :from ORDER BY j.segment, j.urgency, j.sort_key, j.id LIMIT 1) AS sort_key
  FROM {of}) AS x WHERE x.sort_key IS NOT NULL

-- name: due_scheduled_of
-- with kind: scheduled
{first_due}

-- name: due_claimed_of
-- with kind: due
{first_due}

-- name: due_scheduled
-- with kind: scheduled
-- with name_of: q.queue
-- with segment_of: CONCAT('s', q.queue)
-- with of: qsidecar_queues AS q
{first_due_of_each}

-- name: due_scheduled_among
-- with kind: scheduled
-- with name_of: q.queue
-- with segment_of: CONCAT('s', q.queue)
-- with of: qsidecar_queues AS q WHERE q.queue IN (:queues)
{first_due_of_each}

-- name: due_claimed
-- with kind: due
-- with name_of: {owner_segment}
-- with segment_of: {owner_segment}
-- with owner_segment: CONVERT(CONCAT('c', LPAD(HEX(h.sidecar), 16, '0')) USING ascii) COLLATE ascii_bin
-- with of: (SELECT sidecar FROM qsidecar_sidecars UNION ALL SELECT 0) AS h
{first_due_of_each}

-- fragment: prunable_keys_index
qsidecar_keys FORCE INDEX (qsidecar_keys_prunable)

-- name: mark_dead
-- The condition is that of backends.HeartbeatExpired.
UPDATE qsidecar_sidecars SET dead = 1
WHERE sidecar = :sidecar AND heartbeats = :heartbeats AND NOT dead
  AND (expires_at <= {now} OR NOT has_left AND expires_at > {now} + INTERVAL :timeout_us MICROSECOND)

-- name: find_due
SELECT {no_pushdown} id FROM {jobs}
WHERE segment = :segment AND {uncovered} AND urgency = 0 AND sort_key >= :from AND sort_key <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {now})
ORDER BY urgency, sort_key, id LIMIT :limit

-- name: find_arrived
SELECT id FROM {jobs} WHERE segment = 'n' ORDER BY urgency, sort_key, id LIMIT :limit

-- name: prunable
SELECT prune_at, job FROM qsidecar_prunable WHERE prune_at >= :from AND prune_at <= {now} ORDER BY prune_at, job LIMIT :limit

-- name: expiring
SELECT start_before, job FROM qsidecar_expiring WHERE start_before >= :from AND start_before <= {now} ORDER BY start_before, job LIMIT :limit

-- name: delete_expiring
-- Like delete_prunable.
DELETE FROM qsidecar_expiring WHERE start_before >= :first AND start_before <= :last AND job IN (:jobs)

-- name: prunable_keys
SELECT queue, `key`, prune_at FROM {prunable_keys_index}
WHERE prune_at >= :from AND prune_at <= {now} ORDER BY prune_at LIMIT :limit

-- name: lives
SELECT 1 FROM qsidecar_sidecars WHERE sidecar = :sidecar AND NOT dead

-- name: owned
SELECT id FROM {jobs} WHERE segment = :segment ORDER BY urgency, sort_key, id LIMIT :limit

-- name: forget
DELETE FROM qsidecar_sidecars WHERE sidecar = :sidecar AND dead

-- name: cancelled
-- Claims of a sidecar that a cancel ended.
SELECT token_sidecar, token_number FROM qsidecar_cancelled WHERE owner = :owner

-- name: forget_cancelled
DELETE FROM qsidecar_cancelled WHERE owner = :owner AND token_sidecar = :token_sidecar AND token_number = :token_number

-- name: lost_owners
-- Owners of cancelled claims that aren't alive. It is not a part of the DELETE, which would lock the sidecars.
SELECT DISTINCT c.owner FROM qsidecar_cancelled AS c WHERE NOT EXISTS (SELECT 1 FROM qsidecar_sidecars AS h WHERE h.sidecar = c.owner AND NOT h.dead)

-- name: forget_owner
DELETE FROM qsidecar_cancelled WHERE owner = :owner

-- name: queues_of
SELECT id, queue FROM qsidecar_jobs WHERE id IN (:ids)

-- name: schedule_arrived
UPDATE {by_id} SET state = 'scheduled' WHERE id IN (:ids)

-- fragment: make_ready
-- Gives rows new positions, in the order of their ranks. {set} are other columns.
UPDATE {by_id} SET state = 'ready', ready_at = :now, position = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + :ranks, {set}
WHERE id IN (:ids)

-- name: promote
-- with set: run_at = NULL, group_noticed = NULL
{make_ready}

-- name: existing
SELECT id FROM qsidecar_jobs WHERE id IN (:ids) ORDER BY id

-- name: delete_prunable
-- One walk along the primary key. Between the first and the last row there are only rows of these jobs, of locked jobs, and new ones.
DELETE FROM qsidecar_prunable WHERE prune_at >= :first AND prune_at <= :last AND job IN (:jobs)

-- name: prune_keys
DELETE FROM qsidecar_keys WHERE queue = :queue AND prune_at <= :now AND `key` IN (:keys)
