package postgres

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// statements are all that run, with the schema's name put in.
//
// A rule for each of them: what it costs must follow from its text, whatever the
// server believes about the tables, because plans are kept and a table that was
// empty when its statistics were taken may hold millions of rows a minute later.
// So a table is reached through `id = ANY(array)`, through the order of an index
// with a LIMIT, or by a LATERAL query with a LIMIT, and never joined: the server
// could turn a join round, or choose to read all of the table. What belongs to a
// row comes from arrays sorted by id; width_bucket finds its place in them.
type statements struct {
	begin, beginRead, unsynced, status, statusOfOne, statusOfMany                                                                 string
	insert, insertKeyed, keyed                                                                                                    string
	ack, deliver, lock, deleteDone, endClaims, renewClaims                                                                        string
	claim, claimLean, claimLIFO, bury, probe, owners                                                                              string
	join, renew, leave                                                                                                            string
	look, promote, lockDue, lockLost                                                                                              string
	markDead, forget, pruneJobs, pruneKeys                                                                                        string
	claimedBy, stats, queuesReady, queuesScheduled, queuesFinished, queuesClaimed, queuesPaused, oldestOf, chosen, view, failures string
	place                                                                                                                         string
	peekReady, peekScheduled, peekClaimed, peekDone                                                                               string
	retryFrom, retry, delete, lockClaimed                                                                                         string
	keysTaken, keysTwice                                                                                                          string
	pause, resume, anyReady                                                                                                       string
	count, purge                                                                                                                  map[backends.State]string
}

func render(schema string) *statements {
	r := func(sql string) string { return in(schema, sql) }
	each := func(sql string) map[backends.State]string {
		m := map[backends.State]string{}
		for _, state := range states {
			m[state] = r(of(state, sql))
		}
		return m
	}
	return &statements{
		begin:     "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		beginRead: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
		unsynced:  "SELECT pg_catalog.set_config('synchronous_commit', 'off', true)",
		status:    statusSQL, statusOfOne: r(claimStatusSQL + returnsOfOne), statusOfMany: r(claimStatusSQL + returnsOfMany),

		insert: r(insertSQL), insertKeyed: r(insertKeyedSQL), keyed: r(keyedSQL),
		ack: r(ackSQL), deliver: r(deliverSQL), lock: r(lockSQL), deleteDone: r(deleteDoneSQL), endClaims: r(endClaimsSQL), renewClaims: r(renewClaimsSQL),
		claim: r(claimSQL(claimOldest)), claimLean: r(claimLeanSQL), claimLIFO: r(claimSQL(claimNewest)), bury: r(burySQL), probe: r(probeSQL), owners: r(ownersSQL),

		join: r(joinSQL + beatTail), renew: r(renewSQL + beatTail), leave: r(leaveSQL + beatTail), claimedBy: r(claimedBySQL),
		look: r(lookSQL), promote: r(promoteSQL), lockDue: r(lockDueSQL), lockLost: r(lockLostSQL),
		markDead: r(markDeadSQL), forget: r(forgetSQL), pruneJobs: r(pruneJobsSQL), pruneKeys: r(pruneKeysSQL),

		stats: r(statsSQL), oldestOf: r(oldestOfSQL),
		queuesReady: r(queuesSQL(backends.StateReady)), queuesScheduled: r(queuesSQL(backends.StateScheduled)), queuesFinished: r(queuesFinishedSQL),
		queuesClaimed: r(queuesClaimedSQL), queuesPaused: r(queuesPausedSQL), count: each(countSQL), chosen: r(chosenSQL), view: r(viewSQL), failures: r(failuresSQL),
		place:     r(placeSQL),
		peekReady: r(peekReadySQL), peekScheduled: r(peekScheduledSQL), peekClaimed: r(peekClaimedSQL), peekDone: r(peekDoneSQL),
		retryFrom: r(strings.Replace(retrySQL, "{ids}", "finished_at IS NOT NULL AND (finished_at, id) > ($2::timestamptz, $3::bigint) ORDER BY finished_at, id LIMIT $4", 1)),
		retry:     r(strings.Replace(retrySQL, "{ids}", "id = ANY($2::bigint[])", 1)),
		keysTaken: r(keysTakenSQL), keysTwice: r(keysTwiceSQL),
		delete: r(deleteSQL), lockClaimed: r(lockClaimedSQL), purge: each(purgeSQL),
		pause: r(pauseSQL), resume: r(resumeSQL), anyReady: r(anyReadySQL),
	}
}

// statusSQL is the last of every transaction that writes, before its COMMIT: who the
// transaction is (nobody, where it wrote nothing).
const statusSQL = `SELECT coalesce(pg_current_xact_id_if_assigned()::text, '')`

// claimStatusSQL is that of one that claims. It also tells whether the claims' host
// lives, the oldest transaction that writes, how often jobs of the queues were given back, and
// whether a lean claim left something.
const claimStatusSQL = statusSQL + `,
  EXISTS (SELECT FROM {s}.qsidecar_hosts WHERE host = $1 AND NOT dead AND NOT has_left),
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
  coalesce(current_setting('qsidecar.left', true), '') <> '', `

const (
	returnsOfOne  = `ARRAY[coalesce((SELECT returns FROM {s}.qsidecar_queues WHERE queue = ($2::text[])[1]), 0)]`
	returnsOfMany = `ARRAY(SELECT coalesce((SELECT q.returns FROM {s}.qsidecar_queues q WHERE q.queue = x.queue LIMIT 1), 0)
    FROM unnest($2::text[]) WITH ORDINALITY AS x (queue, n) ORDER BY x.n)`
)

// insertSQL inserts jobs in the order of the arrays: ids and positions grow with it.
const insertSQL = `
INSERT INTO {s}.qsidecar_jobs (id, position, queue, state, priority, max_attempts, timeout_ms, run_at, headers, payload)
SELECT id, id, queue, CASE WHEN due > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
  priority, nullif(max_attempts, 0), nullif(timeout_ms, 0), due, nullif(headers, '')::jsonb, payload
FROM (
  SELECT {s}.qsidecar_next() AS id, x.*,
    CASE WHEN delay_ms > 0 THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE run_at END AS due
  FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::smallint[], $7::bigint[], $8::text[])
    AS x (queue, payload, priority, delay_ms, run_at, max_attempts, timeout_ms, headers)
) AS j
RETURNING id, state = 'ready'`

// insertKeyedSQL is insertSQL for jobs that have a key, each at most once in it. It answers
// with all jobs, and then with those that were stored.
const insertKeyedSQL = `
WITH j AS MATERIALIZED (
  SELECT {s}.qsidecar_next() AS id, x.*,
    CASE WHEN delay_ms > 0 THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE run_at END AS due
  FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::smallint[], $7::bigint[], $8::text[],
      $9::text[], $10::bigint[]) WITH ORDINALITY
    AS x (queue, payload, priority, delay_ms, run_at, max_attempts, timeout_ms, headers, key, key_ttl_ms, n)
), k AS (
  INSERT INTO {s}.qsidecar_keys AS k (queue, key, job, expires_at)
  SELECT queue, key, id, {s}.qsidecar_now() + key_ttl_ms * interval '1 ms' FROM j ORDER BY queue, key
  ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, expires_at = excluded.expires_at, state = NULL
    WHERE k.state IS NOT NULL AND k.expires_at <= {s}.qsidecar_now()
  RETURNING job
), i AS (
  INSERT INTO {s}.qsidecar_jobs (id, position, queue, state, priority, max_attempts, timeout_ms, run_at, key, headers, payload)
  SELECT id, id, queue, CASE WHEN due > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
    priority, nullif(max_attempts, 0), nullif(timeout_ms, 0), due, key, nullif(headers, '')::jsonb, payload
  FROM j WHERE id IN (SELECT job FROM k)
  RETURNING id, state
)
SELECT n, id, id IN (SELECT job FROM k), NULL::boolean FROM j
UNION ALL
SELECT NULL, id, true, state = 'ready' FROM i`

// keyedSQL finds the first jobs that were stored with some keys.
const keyedSQL = `
SELECT x.n, k.job, coalesce(k.state, (SELECT j.state FROM {s}.qsidecar_jobs j WHERE j.id = k.job LIMIT 1), 'deleted')
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS x (queue, key, n)
CROSS JOIN LATERAL (SELECT k.job, k.state FROM {s}.qsidecar_keys k WHERE k.queue = x.queue AND k.key = x.key LIMIT 1) AS k`

// at is a row's index in the arrays that came with its lease. $1, the ids, is sorted.
const at = `width_bucket(j.id, $1::bigint[])`

// leased are the rows whose claims the leases prove: no other rows have a token.
const leased = `j.id = ANY($1::bigint[]) AND j.token_host = ($2::bigint[])[` + at + `] AND j.token_number = ($3::bigint[])[` + at + `]`

// unclaimed takes the claim from a row.
const unclaimed = `ahead = false, token_host = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL,
    claimed_at = NULL, worker = NULL`

// ackSQL ends claims of jobs that are not kept and have no key.
const ackSQL = `
DELETE FROM {s}.qsidecar_jobs j WHERE ` + leased + ` AND j.keep_ms IS NULL AND j.key IS NULL
RETURNING ` + at

// rowColumns are what the core needs of a claimed row. {cause} is why it is reaped.
const rowColumns = `j.id, j.queue::text, coalesce(j.key, ''), j.priority, j.position, j.fence, coalesce(j.token_host, 0), coalesce(j.token_number, 0),
  coalesce(j.owner, 0), coalesce(j.lease_ms, 0), j.attempts + j.ahead::int, coalesce(j.claim_max, 2147483647), j.losses,
  coalesce(j.backoff_ms, 0), coalesce(j.backoff_max_ms, 0), j.ahead, j.unrecorded, j.keep_ms IS NOT NULL, j.worker IS NOT NULL, {cause}`

// lockSQL locks claimed rows.
var lockSQL = `
SELECT ` + causeless + ` FROM {s}.qsidecar_jobs j
WHERE j.id = ANY($1::bigint[]) AND j.token_host IS NOT NULL ORDER BY j.id FOR UPDATE`

var causeless = strings.Replace(rowColumns, "{cause}", "''::text", 1)

// deleteDoneSQL deletes acked jobs.
const deleteDoneSQL = `
WITH d AS (
  DELETE FROM {s}.qsidecar_jobs WHERE id = ANY($1::bigint[]) RETURNING id, key
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'done' WHERE job = ANY(ARRAY(SELECT id FROM d WHERE key IS NOT NULL))
)
SELECT id FROM d`

// endClaimsSQL writes how claims ended whose jobs stay. Ready jobs get a new position,
// behind the others, unless they are given back ($6). It answers with the ids, and with the
// queue's count of returns for jobs that are given back.
const endClaimsSQL = `
WITH u AS (
  UPDATE {s}.qsidecar_jobs j SET ` + unclaimed + `,
    (state, attempts, losses, unrecorded, position, ready_at, run_at, last_error, finished_at, expires_at, result) = (
    SELECT state, attempts, losses, unrecorded,
      CASE WHEN state = 'ready' AND NOT back THEN {s}.qsidecar_next() ELSE j.position END,
      CASE WHEN state = 'ready' AND NOT back THEN {s}.qsidecar_now() ELSE j.ready_at END,
      CASE WHEN state = 'scheduled' THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE j.run_at END,
      CASE WHEN cause = '' THEN j.last_error ELSE message END,
      CASE WHEN state IN ('done', 'dead') THEN {s}.qsidecar_now() END,
      CASE state WHEN 'done' THEN {s}.qsidecar_now() + j.keep_ms * interval '1 ms'
        WHEN 'dead' THEN {s}.qsidecar_now() + j.keep_dead_ms * interval '1 ms' END,
      result
    FROM (
      SELECT ($2::text[])[i] AS state, ($3::bigint[])[i] AS attempts, ($4::bigint[])[i] AS losses, ($5::bigint[])[i] AS unrecorded,
        ($6::boolean[])[i] AS back, ($7::bigint[])[i] AS delay_ms, ($8::text[])[i] AS cause, ($9::text[])[i] AS message, ($10::bytea[])[i] AS result
      FROM (SELECT ` + at + ` AS i OFFSET 0) AS x
    ) AS y)
  WHERE j.id = ANY($1::bigint[])
  RETURNING ` + at + ` AS n, j.id, j.queue, j.key, j.state, j.fence, j.attempts
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, ($8::text[])[n], ($9::text[])[n], {s}.qsidecar_now() FROM u WHERE ($8::text[])[n] <> ''
), k AS (
  UPDATE {s}.qsidecar_keys k SET state = (SELECT u.state FROM u WHERE u.id = k.job LIMIT 1)
  WHERE k.job = ANY(ARRAY(SELECT id FROM u WHERE state IN ('done', 'dead') AND key IS NOT NULL))
), q AS (
  INSERT INTO {s}.qsidecar_queues AS q (queue, returns)
  SELECT DISTINCT queue, 1 FROM u WHERE ($6::boolean[])[n] ORDER BY queue
  ON CONFLICT (queue) DO UPDATE SET returns = q.returns + 1
  RETURNING queue, returns
)
SELECT id, coalesce((SELECT q.returns FROM q WHERE q.queue = u.queue AND ($6::boolean[])[n] LIMIT 1), 0) FROM u`

// deliverSQL records that jobs claimed ahead were handed out; twice is once.
const deliverSQL = `
UPDATE {s}.qsidecar_jobs j SET attempts = j.attempts + j.ahead::int, ahead = false, unrecorded = 0,
  worker = coalesce(j.worker, nullif(($4::text[])[` + at + `], ''))
WHERE ` + leased + `
RETURNING ` + at

// renewClaimsSQL writes claims that go on. Their workers have the jobs for certain.
const renewClaimsSQL = `
UPDATE {s}.qsidecar_jobs j SET attempts = ($2::bigint[])[` + at + `], ahead = false, unrecorded = 0,
  lease_ms = nullif(($3::bigint[])[` + at + `], 0), owner = ($4::bigint[])[` + at + `],
  due_at = CASE WHEN ($5::boolean[])[` + at + `]
    THEN least({s}.qsidecar_now() + nullif(($3::bigint[])[` + at + `], 0) * interval '1 ms', j.deadline) ELSE j.due_at END,
  worker = CASE WHEN ($6::boolean[])[` + at + `] THEN nullif(($7::text[])[` + at + `], '') ELSE j.worker END
WHERE j.id = ANY($1::bigint[])
RETURNING j.id`
