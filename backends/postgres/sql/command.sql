-- Statements of an operator's commands.

-- name: retry
-- with chosen: id = ANY(:ids::bigint[])
{retrying}

-- name: retry_from
-- with chosen: finished_at IS NOT NULL AND (finished_at, id) > (:after_at::timestamptz, :after_id::bigint) ORDER BY finished_at, id LIMIT :limit
{retrying}

-- fragment: retrying
-- Makes dead jobs ready and gives them their keys back. A job whose key another one has stays dead. It answers with how many it made ready, how many
-- it read, and the last of these.
WITH t AS MATERIALIZED (
  SELECT id, queue, CASE WHEN key_state IS NULL THEN key END AS key, finished_at FROM {s}.qsidecar_jobs
  WHERE state = 'dead' AND queue = :queue AND {chosen}
  FOR UPDATE
), l AS MATERIALIZED (
  SELECT FROM {s}.qsidecar_keys k WHERE k.queue = :queue AND k.key IN (SELECT key FROM t WHERE key IS NOT NULL) {in_order} NOWAIT
), k AS (
  INSERT INTO {s}.qsidecar_keys AS k (queue, key, job, expires_at)
  SELECT DISTINCT ON (queue, key) queue, key, id, {s}.qsidecar_now() FROM t
  WHERE key IS NOT NULL AND (SELECT count(*) FROM l) >= 0 ORDER BY queue, key, id
  ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, state = NULL,
    expires_at = CASE WHEN k.job = excluded.job THEN k.expires_at ELSE excluded.expires_at END
    WHERE k.job = excluded.job OR k.state IS NOT NULL AND k.expires_at <= {s}.qsidecar_now()
  RETURNING job
), u AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'ready', position = {s}.qsidecar_next(), ready_at = {s}.qsidecar_now(),
    attempts = 0, losses = 0, prefetch_losses = 0, finished_at = NULL, prune_at = NULL, group_noticed = NULL, start_before = NULL
  WHERE j.id = ANY(ARRAY(SELECT id FROM t WHERE key IS NULL OR id IN (SELECT job FROM k)))
  RETURNING 1
)
SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM t),
  coalesce((SELECT max(finished_at) FROM t), {s}.qsidecar_now()), coalesce((SELECT id FROM t ORDER BY finished_at DESC, id DESC LIMIT 1), 0)

-- fragment: changed_due
CASE WHEN :delay_ms::bigint IS NOT NULL THEN least({s}.qsidecar_now() + :delay_ms::bigint * interval '1 ms', j.enqueued_at + nullif(:within_ms::bigint, 0) * interval '1 ms') WHEN :run_at::timestamptz IS NOT NULL THEN :run_at::timestamptz
    WHEN j.state = 'scheduled' THEN j.run_at END

-- name: change
-- Changes the priority (:priority) or the time (:delay_ms from now, but at most :within_ms after the enqueue, or :run_at) of jobs that wait. It locks the rows first, so that
-- none of them is claimed in between. Those that are ready wait for their groups again; one in a back-off keeps its slot. A fence above 0 frees rows from a CHECK that is younger than they are.
WITH t AS MATERIALIZED (
  SELECT id, CASE WHEN state = 'ready' THEN admitted_group END AS group_name FROM {s}.qsidecar_jobs
  WHERE id = ANY(:ids::bigint[]) AND queue = :queue AND state IN ('ready', 'scheduled')
  FOR UPDATE
), u AS (
  UPDATE {s}.qsidecar_jobs j SET priority = coalesce(:priority::smallint, j.priority), fence = greatest(j.fence, 1),
    state = CASE WHEN {changed_due} > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
    run_at = CASE WHEN {changed_due} > {s}.qsidecar_now() THEN {changed_due} END,
    position = CASE WHEN {changed_due} > {s}.qsidecar_now() THEN j.position ELSE {s}.qsidecar_next() END,
    ready_at = CASE WHEN {changed_due} > {s}.qsidecar_now() THEN j.ready_at ELSE {s}.qsidecar_now() END,
    group_name = CASE WHEN j.state = 'ready' THEN coalesce(j.group_name, j.admitted_group) ELSE j.group_name END,
    admitted_group = CASE WHEN j.state <> 'ready' THEN j.admitted_group END, group_noticed = NULL
  WHERE j.id = ANY(ARRAY(SELECT id FROM t)) AND j.state IN ('ready', 'scheduled')
  RETURNING j.state = 'ready' AND j.group_name IS NULL AS ready
)
SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u), (SELECT coalesce(bool_or(ready), false) FROM u),
  ARRAY(SELECT DISTINCT group_name FROM t WHERE group_name IS NOT NULL)

-- name: lock_claimed
-- Locks claimed jobs of a queue, whichever sidecar owns them.
SELECT {row} ''::text FROM {s}.qsidecar_jobs j
WHERE j.id = ANY(:ids::bigint[]) AND j.queue = :queue AND j.token_sidecar IS NOT NULL ORDER BY j.id FOR UPDATE

-- name: states
-- Locks jobs and returns their states and groups, and whether a cancel was the last failure.
SELECT j.id, {shown_state}, coalesce(j.group_name, j.admitted_group, ''), j.state = 'dead' AND coalesce((SELECT f.cause = 'cancelled' FROM {s}.qsidecar_failures f WHERE f.job = j.id AND f.fence = j.fence LIMIT 1), false)
FROM {s}.qsidecar_jobs j WHERE j.id = ANY(:ids::bigint[]) AND j.queue = :queue ORDER BY j.id FOR UPDATE OF j

-- name: cancel_waiting
-- Makes locked ready, blocked and scheduled jobs dead. A fence above 0 frees rows from a CHECK that is younger than they are.
WITH l AS MATERIALIZED ({keys_of}(:ids::bigint[]) {in_order} NOWAIT
), b AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'dead', fence = {next_fence}, run_at = NULL,
    retention_dead_ms = coalesce(j.retention_dead_ms, nullif(:retention_dead::bigint, 0)), finished_at = {s}.qsidecar_now(),
    prune_at = {s}.qsidecar_now() + coalesce(j.retention_dead_ms, nullif(:retention_dead::bigint, 0)) * interval '1 ms', last_error = :message
  WHERE j.id = ANY(:ids::bigint[]) AND j.queue = :queue AND (SELECT count(*) FROM l) >= 0
  RETURNING j.id, j.fence, j.attempts
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, 'cancelled', :message, {s}.qsidecar_now() FROM b
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'dead' WHERE job = ANY(ARRAY(SELECT job FROM l))
)
SELECT count(*) FROM b

-- name: note_cancelled
INSERT INTO {s}.qsidecar_cancelled (owner, token_sidecar, token_number)
SELECT * FROM unnest(:owners::bigint[], :sidecars::bigint[], :numbers::bigint[]) ON CONFLICT DO NOTHING

-- fragment: deleting
-- Removes the rows p and notes it in their keys. The third column has the groups of those that had slots.
, d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY(ARRAY(SELECT id FROM p)) RETURNING id, key, admitted_group
), l AS MATERIALIZED ({keys_of}(ARRAY(SELECT id FROM d WHERE key IS NOT NULL)) {in_order} NOWAIT
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'deleted' WHERE job = ANY(ARRAY(SELECT job FROM l))
)
SELECT (SELECT count(*) FROM p), (SELECT count(*) FROM d), ARRAY(SELECT DISTINCT admitted_group FROM d WHERE admitted_group IS NOT NULL)

-- name: delete
WITH p AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs WHERE id = ANY(:ids::bigint[]) AND queue = :queue AND state <> 'claimed' FOR UPDATE
){deleting}

-- name: purge_ready
-- with where: state = 'ready' AND group_name IS NULL
-- with first: -priority::int
-- with second: position
-- with type: int
{purging}

-- name: purge_blocked
-- The same for blocked jobs, which are in the order of their groups.
WITH p AS MATERIALIZED (
  SELECT id, group_name AS a, -priority::int AS b, position AS c FROM {s}.qsidecar_jobs
  WHERE state = 'ready' AND group_name IS NOT NULL AND queue = :queue
    AND (group_name, -priority::int, position) > (:after_group::text, :after_urgency::int, :after_position::bigint)
  ORDER BY group_name, -priority::int, position LIMIT :limit FOR UPDATE SKIP LOCKED
){deleting},
  coalesce((SELECT a FROM p ORDER BY a DESC, b DESC, c DESC LIMIT 1), :after_group), coalesce((SELECT b FROM p ORDER BY a DESC, b DESC, c DESC LIMIT 1), :after_urgency),
  coalesce((SELECT c FROM p ORDER BY a DESC, b DESC, c DESC LIMIT 1), :after_position)

-- name: purge_scheduled
-- with where: state = 'scheduled'
-- with first: run_at
-- with second: id
-- with type: timestamptz
{purging}

-- name: purge_done
-- with where: finished_at IS NOT NULL AND state = 'done'
-- with first: finished_at
-- with second: id
-- with type: timestamptz
{purging}

-- name: purge_dead
-- with where: finished_at IS NOT NULL AND state = 'dead'
-- with first: finished_at
-- with second: id
-- with type: timestamptz
{purging}

-- fragment: purging
-- Deletes at most :limit rows in a state, after a position. The last columns are the position of the last of them.
WITH p AS MATERIALIZED (
  SELECT id, {first} AS a, {second} AS b FROM {s}.qsidecar_jobs
  WHERE {where} AND queue = :queue AND ({first}, {second}) > (:after_first::{type}, :after_second::bigint) ORDER BY {first}, {second} LIMIT :limit FOR UPDATE SKIP LOCKED
){deleting},
  coalesce((SELECT a FROM p ORDER BY a DESC, b DESC LIMIT 1), :after_first), coalesce((SELECT b FROM p ORDER BY a DESC, b DESC LIMIT 1), :after_second)

-- name: pause
INSERT INTO {s}.qsidecar_queues (queue, paused) VALUES (:queue, true) ON CONFLICT (queue) DO UPDATE SET paused = true

-- name: resume
UPDATE {s}.qsidecar_queues SET paused = false WHERE queue = :queue AND paused

-- name: any_ready
SELECT EXISTS (SELECT FROM {s}.qsidecar_jobs WHERE state = 'ready' AND group_name IS NULL AND queue = :queue)
