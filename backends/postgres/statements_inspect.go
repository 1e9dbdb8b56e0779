package postgres

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

var states = []backends.State{backends.StateReady, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead}

// within is the condition that a state's rows meet, in the words of its index:
// a parameter in its place would find no partial index.
func within(state backends.State) (where, order string, ok bool) {
	switch state {
	case backends.StateReady:
		return "state = 'ready'", "-priority::int, position", true
	case backends.StateScheduled:
		return "state = 'scheduled'", "run_at, id", true
	case backends.StateClaimed:
		return "state = 'claimed'", "claimed_at, id", true
	case backends.StateDone:
		return "finished_at IS NOT NULL AND state = 'done'", "finished_at, id", true
	case backends.StateDead:
		return "finished_at IS NOT NULL AND state = 'dead'", "finished_at, id", true
	}
	return "", "", false
}

// of puts a state's condition and order into a statement.
func of(state backends.State, sql string) string {
	where, order, _ := within(state)
	return strings.NewReplacer("{where}", where, "{order}", order).Replace(sql)
}

var statsSQL = `
SELECT {s}.qsidecar_now(),
` + func() string {
	var b strings.Builder
	for _, state := range states {
		b.WriteString("  (" + of(state, countSQL) + "),\n")
	}
	return b.String()
}() + `  EXISTS (SELECT FROM {s}.qsidecar_queues WHERE queue = $1 AND paused),
  (SELECT min(claimed_at) FROM {s}.qsidecar_jobs WHERE state = 'claimed' AND queue = $1),
  (` + oldestSQL + `)`

const countSQL = `SELECT count(*) FROM (SELECT FROM {s}.qsidecar_jobs WHERE {where} AND queue = $1 LIMIT $2) AS c`

// oldestSQL looks at the first row of each priority: inside one, positions are
// given in the order in which rows become ready.
const oldestSQL = `
WITH RECURSIVE p AS (
  (SELECT -priority::int AS urgency, ready_at FROM {s}.qsidecar_jobs WHERE state = 'ready' AND queue = $1 ORDER BY -priority::int, position LIMIT 1)
  UNION ALL
  SELECT n.urgency, n.ready_at FROM p CROSS JOIN LATERAL (
    SELECT -j.priority::int AS urgency, j.ready_at FROM {s}.qsidecar_jobs j
    WHERE j.state = 'ready' AND j.queue = $1 AND -j.priority::int > p.urgency ORDER BY -j.priority::int, j.position LIMIT 1) AS n
)
SELECT min(ready_at) FROM p`

// oldestOfSQL is oldestSQL for many queues.
var oldestOfSQL = `
SELECT x.queue, {s}.qsidecar_now(), (` + strings.ReplaceAll(oldestSQL, "$1", "x.queue") + `)
FROM unnest($1::text[]) AS x (queue)`

// queuesSQL counts the rows of all queues that are behind one, a limited number of them.
func queuesSQL(state backends.State) string {
	return of(state, `
SELECT queue::text, '`+string(state)+`', count(*)
FROM (SELECT queue FROM {s}.qsidecar_jobs WHERE {where} AND queue > $1 ORDER BY queue LIMIT $2) AS p
GROUP BY queue ORDER BY queue`)
}

const (
	queuesFinishedSQL = `
SELECT queue::text, state::text, count(*)
FROM (
  SELECT queue, state FROM {s}.qsidecar_jobs WHERE finished_at IS NOT NULL AND (queue, state) > ($1, $3) ORDER BY queue, state LIMIT $2
) AS p
GROUP BY queue, state ORDER BY queue, state`

	queuesClaimedSQL = `
SELECT {s}.qsidecar_now(), queue::text, count(*), min(claimed_at) FROM {s}.qsidecar_jobs WHERE state = 'claimed' GROUP BY queue`

	queuesPausedSQL = `SELECT queue FROM {s}.qsidecar_queues WHERE paused`
)

const placeSQL = `
SELECT -priority::int, position, run_at, claimed_at, finished_at FROM {s}.qsidecar_jobs WHERE id = $1 AND queue = $2`

var peekReadySQL = `
SELECT id, ` + sizeOf("") + ` FROM {s}.qsidecar_jobs
WHERE state = 'ready' AND queue = $1 AND (-priority::int, position) > ($2::int, $3::bigint)
ORDER BY -priority::int, position LIMIT $4`

var peekScheduledSQL = `
SELECT id, ` + sizeOf("") + ` FROM {s}.qsidecar_jobs
WHERE state = 'scheduled' AND queue = $1 AND (run_at, id) > ($2::timestamptz, $3::bigint)
ORDER BY run_at, id LIMIT $4`

var peekClaimedSQL = `
SELECT id, ` + sizeOf("") + ` FROM {s}.qsidecar_jobs
WHERE state = 'claimed' AND queue = $1 AND (claimed_at, id) > ($2::timestamptz, $3::bigint)
ORDER BY claimed_at, id LIMIT $4`

var peekDoneSQL = `
SELECT id, ` + sizeOf("") + ` + coalesce(octet_length(result), 0) FROM {s}.qsidecar_jobs
WHERE finished_at IS NOT NULL AND queue = $1 AND state = $5 AND (finished_at, id) > ($2::timestamptz, $3::bigint)
ORDER BY finished_at, id LIMIT $4`

// chosenSQL finds the sizes of named jobs.
var chosenSQL = `
SELECT j.id, j.size
FROM unnest($1::bigint[]) WITH ORDINALITY AS x (id, n)
CROSS JOIN LATERAL (
  SELECT j.id, ` + sizeOf("j.") + ` + coalesce(octet_length(j.result), 0) AS size
  FROM {s}.qsidecar_jobs j WHERE j.id = x.id AND j.queue = $2 LIMIT 1
) AS j
ORDER BY x.n`

const viewSQL = `
SELECT j.id, j.queue, j.state, j.payload, j.priority, j.attempts, coalesce(j.claim_max, j.max_attempts, 0), j.enqueued_at,
  j.run_at, j.claimed_at, j.finished_at, coalesce(j.worker, ''), coalesce(j.key, ''), coalesce(j.headers::text, ''), j.result
FROM unnest($1::bigint[]) WITH ORDINALITY AS x (id, n)
CROSS JOIN LATERAL (SELECT * FROM {s}.qsidecar_jobs j WHERE j.id = x.id AND j.queue = $2 LIMIT 1) AS j
ORDER BY x.n`

const failuresSQL = `
SELECT job, attempt, cause, message, at FROM {s}.qsidecar_failures WHERE job = ANY($1::bigint[]) ORDER BY job, fence`

// retrySQL makes dead jobs ready and gives them their keys back. A job whose key
// another one has by now stays dead, and the second number is below the first. The last
// columns are how many were seen, and the last of them.
const retrySQL = `
WITH t AS MATERIALIZED (
  SELECT id, queue, key, finished_at FROM {s}.qsidecar_jobs
  WHERE state = 'dead' AND queue = $1 AND {ids}
  FOR UPDATE
), k AS (
  INSERT INTO {s}.qsidecar_keys AS k (queue, key, job, expires_at)
  SELECT DISTINCT ON (queue, key) queue, key, id, {s}.qsidecar_now() FROM t WHERE key IS NOT NULL ORDER BY queue, key, id
  ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, state = NULL,
    expires_at = CASE WHEN k.job = excluded.job THEN k.expires_at ELSE excluded.expires_at END
    WHERE k.job = excluded.job OR k.state IS NOT NULL AND k.expires_at <= {s}.qsidecar_now()
  RETURNING job
), u AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'ready', position = {s}.qsidecar_next(), ready_at = {s}.qsidecar_now(),
    attempts = 0, losses = 0, unrecorded = 0, finished_at = NULL, expires_at = NULL
  WHERE j.id = ANY(ARRAY(SELECT id FROM t WHERE key IS NULL OR id IN (SELECT job FROM k)))
  RETURNING 1
)
SELECT (SELECT count(*) FROM t WHERE key IS NOT NULL), (SELECT count(*) FROM k), (SELECT count(*) FROM u), (SELECT count(*) FROM t),
  coalesce((SELECT max(finished_at) FROM t), {s}.qsidecar_now()), coalesce((SELECT id FROM t ORDER BY finished_at DESC, id DESC LIMIT 1), 0)`

// keysTakenSQL is whether a retry of all dead jobs of a queue would give one a key that
// another job has. Each key is looked up by the index, however many there are.
const keysTakenSQL = `
SELECT EXISTS (
  SELECT FROM {s}.qsidecar_jobs j
  CROSS JOIN LATERAL (
    SELECT FROM {s}.qsidecar_keys k
    WHERE k.queue = $1 AND k.key = j.key AND k.job <> j.id AND (k.state IS NULL OR k.expires_at > {s}.qsidecar_now()) LIMIT 1
  ) AS k
  WHERE j.state = 'dead' AND j.queue = $1 AND j.finished_at IS NOT NULL AND j.key IS NOT NULL
)`

// keysTwiceSQL is whether two dead jobs of a queue have one key.
const keysTwiceSQL = `
SELECT EXISTS (
  SELECT FROM {s}.qsidecar_jobs
  WHERE state = 'dead' AND queue = $1 AND finished_at IS NOT NULL AND key IS NOT NULL
  GROUP BY key HAVING count(*) > 1
)`

// deleting removes rows p and tells their keys.
const deleting = `, d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY(ARRAY(SELECT id FROM p)) RETURNING id, key
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'deleted' WHERE job = ANY(ARRAY(SELECT id FROM d WHERE key IS NOT NULL))
)
SELECT (SELECT count(*) FROM p), (SELECT count(*) FROM d)`

const deleteSQL = `
WITH p AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs WHERE id = ANY($2::bigint[]) AND queue = $1 AND state <> 'claimed' FOR UPDATE
)` + deleting

// purgeSQL deletes a bite of the rows in a state.
const purgeSQL = `
WITH p AS MATERIALIZED (
  SELECT id FROM {s}.qsidecar_jobs WHERE {where} AND queue = $1 ORDER BY {order} LIMIT $2 FOR UPDATE SKIP LOCKED
)` + deleting

// lockClaimedSQL locks claimed jobs of a queue, whichever sidecar owns them.
var lockClaimedSQL = `
SELECT ` + causeless + ` FROM {s}.qsidecar_jobs j
WHERE j.id = ANY($2::bigint[]) AND j.queue = $1 AND j.token_host IS NOT NULL ORDER BY j.id FOR UPDATE`

const pauseSQL = `
INSERT INTO {s}.qsidecar_queues (queue, paused) VALUES ($1, true) ON CONFLICT (queue) DO UPDATE SET paused = true`

const resumeSQL = `UPDATE {s}.qsidecar_queues SET paused = false WHERE queue = $1 AND paused`

const anyReadySQL = `SELECT EXISTS (SELECT FROM {s}.qsidecar_jobs WHERE state = 'ready' AND queue = $1)`
