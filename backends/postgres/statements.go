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
	begin, beginRead, unsynced, end, endOne, endMany                                                                         string
	store, storeKeyed, keyed, hold                                                                                           string
	ack, ackPlain, fail, deliver, extend, still                                                                              string
	claim, claimLean, claimLIFO, bury, probe, owners                                                                         string
	join, renew, leave                                                                                                       string
	look, promote, reapDue, reapLost                                                                                         string
	giveUp, forget, pruneJobs, pruneKeys                                                                                     string
	held, stats, queuesReady, queuesScheduled, queuesFinished, queuesClaimed, queuesPaused, oldestOf, chosen, view, failures string
	place                                                                                                                    string
	peekReady, peekScheduled, peekClaimed, peekDone                                                                          string
	retryFrom, retry, delete, release                                                                                        string
	keysTaken, keysTwice                                                                                                     string
	pause, resume, anyReady                                                                                                  string
	count, purge                                                                                                             map[backends.State]string
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
		end:       endSQL, endOne: r(endClaimsSQL + returnsOfOne), endMany: r(endClaimsSQL + returnsOfMany),

		store: r(storeSQL), storeKeyed: r(storeKeyedSQL), keyed: r(keyedSQL), hold: r(holdSQL),
		ack: r(ackSQL), ackPlain: r(ackPlainSQL), fail: r(failLeases + failing(" AND "+valid)), deliver: r(deliverSQL), extend: r(extendSQL), still: r(stillSQL),
		claim: r(claimSQL(claimOldest)), claimLean: r(claimLeanSQL), claimLIFO: r(claimSQL(claimNewest)), bury: r(burySQL), probe: r(probeSQL), owners: r(ownersSQL),

		join: r(joinSQL + beatTail), renew: r(renewSQL + beatTail), leave: r(leaveSQL + beatTail), held: r(heldSQL),
		look: r(lookSQL), promote: r(promoteSQL), reapDue: r(reapDueSQL + failing("")), reapLost: r(reapLostSQL + failing("")),
		giveUp: r(giveUpSQL), forget: r(forgetSQL), pruneJobs: r(pruneJobsSQL), pruneKeys: r(pruneKeysSQL),

		stats: r(statsSQL), oldestOf: r(oldestOfSQL),
		queuesReady: r(queuesSQL(backends.StateReady)), queuesScheduled: r(queuesSQL(backends.StateScheduled)), queuesFinished: r(queuesFinishedSQL),
		queuesClaimed: r(queuesClaimedSQL), queuesPaused: r(queuesPausedSQL), count: each(countSQL), chosen: r(chosenSQL), view: r(viewSQL), failures: r(failuresSQL),
		place:     r(placeSQL),
		peekReady: r(peekReadySQL), peekScheduled: r(peekScheduledSQL), peekClaimed: r(peekClaimedSQL), peekDone: r(peekDoneSQL),
		retryFrom: r(strings.Replace(retrySQL, "{ids}", "finished_at IS NOT NULL AND (finished_at, id) > ($2::timestamptz, $3::bigint) ORDER BY finished_at, id LIMIT $4", 1)),
		retry:     r(strings.Replace(retrySQL, "{ids}", "id = ANY($2::bigint[])", 1)),
		keysTaken: r(keysTakenSQL), keysTwice: r(keysTwiceSQL),
		delete: r(deleteSQL), release: r(releaseSQL + failing("")), purge: each(purgeSQL),
		pause: r(pauseSQL), resume: r(resumeSQL), anyReady: r(anyReadySQL),
	}
}

// endSQL is the last of every transaction that writes, before its COMMIT: who the
// transaction is (nobody, where it wrote nothing).
const endSQL = `SELECT coalesce(pg_current_xact_id_if_assigned()::text, '')`

// endClaimsSQL is that of one that claims. It also tells whether the claims' host
// lives, the oldest transaction that writes, how often jobs of the queues were given back, and
// whether a lean claim left something.
const endClaimsSQL = endSQL + `,
  EXISTS (SELECT FROM {s}.qsidecar_hosts WHERE host = $1 AND NOT dead AND NOT has_left),
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
  coalesce(current_setting('qsidecar.left', true), '') <> '', `

const (
	returnsOfOne  = `ARRAY[coalesce((SELECT returns FROM {s}.qsidecar_queues WHERE queue = ($2::text[])[1]), 0)]`
	returnsOfMany = `ARRAY(SELECT coalesce((SELECT q.returns FROM {s}.qsidecar_queues q WHERE q.queue = x.queue LIMIT 1), 0)
    FROM unnest($2::text[]) WITH ORDINALITY AS x (queue, n) ORDER BY x.n)`
)

// storeSQL inserts jobs in the order of the arrays: ids and positions grow with it.
const storeSQL = `
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

// storeKeyedSQL is storeSQL for jobs that have a key (each at most once in it),
// or that are stored only if a claim is still valid. It answers with all that
// are to be stored, then with those that were.
const storeKeyedSQL = `
WITH j AS MATERIALIZED (
  SELECT {s}.qsidecar_next() AS id, x.*,
    CASE WHEN delay_ms > 0 THEN {s}.qsidecar_now() + delay_ms * interval '1 ms' ELSE run_at END AS due
  FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::smallint[], $7::bigint[], $8::text[],
      $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]) WITH ORDINALITY
    AS x (queue, payload, priority, delay_ms, run_at, max_attempts, timeout_ms, headers, key, key_ttl_ms, job, host, number, n)
  WHERE x.job = 0 OR (SELECT true FROM {s}.qsidecar_jobs o
    WHERE o.id = x.job AND o.token_host = x.host AND o.token_number = x.number LIMIT 1)
), k AS (
  INSERT INTO {s}.qsidecar_keys AS k (queue, key, job, expires_at)
  SELECT queue, key, id, {s}.qsidecar_now() + key_ttl_ms * interval '1 ms' FROM j WHERE key <> '' ORDER BY queue, key
  ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, expires_at = excluded.expires_at, state = NULL
    WHERE k.state IS NOT NULL AND k.expires_at <= {s}.qsidecar_now()
  RETURNING job
), i AS (
  INSERT INTO {s}.qsidecar_jobs (id, position, queue, state, priority, max_attempts, timeout_ms, run_at, key, headers, payload)
  SELECT id, id, queue, CASE WHEN due > {s}.qsidecar_now() THEN 'scheduled' ELSE 'ready' END,
    priority, nullif(max_attempts, 0), nullif(timeout_ms, 0), due, nullif(key, ''), nullif(headers, '')::jsonb, payload
  FROM j WHERE key = '' OR id IN (SELECT job FROM k)
  RETURNING id, state
)
SELECT n, id, key = '' OR id IN (SELECT job FROM k), NULL::boolean FROM j
UNION ALL
SELECT NULL, id, true, state = 'ready' FROM i`

// keyedSQL finds the first jobs that were stored with some keys.
const keyedSQL = `
SELECT x.n, k.job, coalesce(k.state, (SELECT j.state FROM {s}.qsidecar_jobs j WHERE j.id = k.job LIMIT 1), 'deleted')
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS x (queue, key, n)
CROSS JOIN LATERAL (SELECT k.job, k.state FROM {s}.qsidecar_keys k WHERE k.queue = x.queue AND k.key = x.key LIMIT 1) AS k`

// at is a row's place in the arrays that came with its lease; $1, the ids, is
// sorted.
const at = `width_bucket(j.id, $1::bigint[])`

// leased are the rows of leases, and valid those whose claim the lease proves: no
// other rows have a token.
const (
	leased = `j.id = ANY($1::bigint[]) AND ` + valid
	valid  = `j.token_host = ($2::bigint[])[` + at + `] AND j.token_number = ($3::bigint[])[` + at + `]`
	owned  = ` AND (($4::bigint[])[` + at + `] = 0 OR j.owner = ($4::bigint[])[` + at + `])`
)

// holdSQL keeps claims from changing until the transaction ends.
const holdSQL = `SELECT 1 FROM {s}.qsidecar_jobs j WHERE ` + leased + ` FOR UPDATE`

// stillSQL finds which of some leases are valid, after a settle said that none was.
const stillSQL = `SELECT 1 FROM {s}.qsidecar_jobs j WHERE ` + leased + owned + ` LIMIT 1`

// unclaimed takes the claim from a row.
const unclaimed = `ahead = false, token_host = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL,
    claimed_at = NULL, worker = NULL`

// ackPlainSQL ends claims of jobs that are not kept and have no key.
const ackPlainSQL = `
DELETE FROM {s}.qsidecar_jobs j WHERE ` + leased + ` AND j.keep_ms IS NULL AND j.key IS NULL
RETURNING ` + at

// ackSQL ends claims: as the claim's policy said, the row goes or stays.
const ackSQL = `
WITH d AS (
  DELETE FROM {s}.qsidecar_jobs j WHERE ` + leased + ` AND j.keep_ms IS NULL
  RETURNING ` + at + ` AS n, j.id, j.key
), u AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'done', finished_at = {s}.qsidecar_now(),
    expires_at = {s}.qsidecar_now() + j.keep_ms * interval '1 ms', result = ($4::bytea[])[` + at + `],
    attempts = j.attempts + j.ahead::int, ` + unclaimed + `
  WHERE ` + leased + ` AND j.keep_ms IS NOT NULL
  RETURNING ` + at + ` AS n, j.id, j.key
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'done'
  WHERE job = ANY(ARRAY(SELECT id FROM d WHERE key IS NOT NULL UNION ALL SELECT id FROM u WHERE key IS NOT NULL))
)
SELECT n FROM d UNION ALL SELECT n FROM u`

// failLeases are claims that end with a failure, or are given back (uncharged). A
// loss is a failure that its worker did not tell.
const failLeases = `
WITH a AS (
  SELECT $1::bigint[] AS ids, $5::boolean[] AS uncharged, $6::boolean[] AS losses, $7::boolean[] AS buries, $8::bigint[] AS delays,
    $9::text[] AS causes, $10::text[] AS messages
)`

// failing says what becomes of the rows of a, which are locked or checked: the
// fates of backends.Standing, for many at once. Ready ones go behind the waiting,
// except those that are given back.
func failing(check string) string {
	if check != "" {
		check += owned
	}
	return `, u AS (
  UPDATE {s}.qsidecar_jobs j SET ` + unclaimed + `,
    (state, attempts, losses, unrecorded, position, ready_at, run_at, last_error, finished_at, expires_at) = (
    SELECT state, attempts, losses, unrecorded,
      CASE WHEN state = 'ready' AND NOT back THEN {s}.qsidecar_next() ELSE j.position END,
      CASE WHEN state = 'ready' AND NOT back THEN {s}.qsidecar_now() ELSE j.ready_at END,
      CASE WHEN state = 'scheduled' THEN {s}.qsidecar_now() + wait_ms * interval '1 ms' ELSE j.run_at END,
      CASE WHEN uncharged THEN j.last_error ELSE message END,
      CASE WHEN state = 'dead' THEN {s}.qsidecar_now() END,
      CASE WHEN state = 'dead' THEN {s}.qsidecar_now() + j.keep_dead_ms * interval '1 ms' END
    FROM (
      SELECT w.*, loss AND uncharged AS back,
        CASE WHEN bury OR NOT uncharged AND attempts >= j.claim_max THEN 'dead' WHEN wait_ms > 0 THEN 'scheduled' ELSE 'ready' END AS state
      FROM (
        SELECT v.*, CASE
          WHEN loss AND (uncharged OR losses = 1 AND cause <> 'timed_out') THEN 0
          ELSE coalesce(delay_ms, least(j.backoff_max_ms, j.backoff_ms * 2::double precision ^ least(greatest(attempts, 1) + greatest(-losses, 1) - 2, 50))::bigint)
          END AS wait_ms
        FROM (
          SELECT x.*, j.attempts + j.ahead::int - uncharged::int AS attempts,
            CASE WHEN uncharged AND NOT loss AND delay_ms IS NULL THEN greatest(least(j.losses, 0) - 1, -100)
              WHEN uncharged THEN j.losses WHEN loss THEN greatest(j.losses, 0) + 1 ELSE 0 END AS losses,
            CASE WHEN uncharged AND cause = 'sidecar_lost' THEN j.unrecorded + 1
              WHEN uncharged OR loss AND cause = 'sidecar_lost' THEN j.unrecorded ELSE 0 END AS unrecorded
          FROM (
            SELECT a.uncharged[i] AS uncharged, a.losses[i] AS loss, a.buries[i] AS bury, a.delays[i] AS delay_ms, a.causes[i] AS cause,
              a.messages[i] AS message
            FROM (SELECT a.*, width_bucket(j.id, a.ids) AS i FROM a OFFSET 0) AS a
          ) AS x
        ) AS v
      ) AS w
    ) AS f)
  WHERE j.id = ANY((SELECT ids FROM a)::bigint[])` + check + `
  RETURNING width_bucket(j.id, (SELECT ids FROM a)) AS n, j.id, j.queue, j.key, j.state, j.fence, j.attempts, -j.priority::int AS urgency, j.position
), f AS MATERIALIZED (
  SELECT u.*, a.causes[n] AS cause, a.messages[n] AS message, a.uncharged[n] AS uncharged, a.uncharged[n] AND a.losses[n] AS back
  FROM u CROSS JOIN a
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, cause, message, {s}.qsidecar_now() FROM f WHERE NOT uncharged
), k AS (
  UPDATE {s}.qsidecar_keys SET state = 'dead' WHERE job = ANY(ARRAY(SELECT id FROM f WHERE state = 'dead' AND key IS NOT NULL))
), q AS (
  INSERT INTO {s}.qsidecar_queues AS q (queue, returns)
  SELECT DISTINCT queue, 1 FROM f WHERE back ORDER BY queue
  ON CONFLICT (queue) DO UPDATE SET returns = q.returns + 1
  RETURNING queue, returns
)
SELECT n, queue, state, cause, urgency, position, coalesce((SELECT q.returns FROM q WHERE q.queue = f.queue AND f.back LIMIT 1), 0)
FROM f`
}

// deliverSQL records that jobs claimed ahead were handed out; twice is once.
const deliverSQL = `
UPDATE {s}.qsidecar_jobs j SET attempts = j.attempts + j.ahead::int, ahead = false, unrecorded = 0,
  worker = coalesce(j.worker, nullif(($4::text[])[` + at + `], ''))
WHERE ` + leased + `
RETURNING ` + at

// extendSQL renews or binds claims, whose worker then has them for certain. One
// that is only looked at is not written to.
const extendSQL = `
WITH u AS (
  UPDATE {s}.qsidecar_jobs j SET attempts = j.attempts + j.ahead::int, ahead = false, unrecorded = 0,
    (lease_ms, due_at, owner, worker) = (
    SELECT CASE WHEN bind <> 0 THEN NULL ELSE lease END,
      CASE WHEN bind <> 0 THEN j.deadline ELSE least({s}.qsidecar_now() + lease * interval '1 ms', j.deadline) END,
      CASE WHEN bind <> 0 THEN bind ELSE j.owner END,
      CASE WHEN bind <> 0 THEN nullif(worker, '') ELSE j.worker END
    FROM (
      SELECT coalesce(nullif(($4::bigint[])[i], 0), j.lease_ms) AS lease, ($5::bigint[])[i] AS bind, ($6::text[])[i] AS worker
      FROM (SELECT ` + at + ` AS i OFFSET 0) AS x
    ) AS y)
  WHERE ` + leased + ` AND (($5::bigint[])[` + at + `] <> 0 OR ($4::bigint[])[` + at + `] > 0 OR j.lease_ms IS NOT NULL OR j.ahead OR j.unrecorded > 0)
  RETURNING ` + at + ` AS n
)
SELECT n FROM u
UNION ALL
SELECT ` + at + ` FROM {s}.qsidecar_jobs j
WHERE ` + leased + ` AND ($5::bigint[])[` + at + `] = 0 AND ($4::bigint[])[` + at + `] = 0
  AND j.lease_ms IS NULL AND NOT j.ahead AND j.unrecorded = 0`
