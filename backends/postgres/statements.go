package postgres

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// statements are all that run, with the schema's name put in.
//
// A rule for each of them: it is a loop over the caller's arrays, or over one
// index, into indexes. Two arrays are never joined, because the joins that could
// do that well are switched off (see settings).
type statements struct {
	begin, beginRead, end, unsynced                 string
	store, storeKeyed, keyed, hold                  string
	ack, fail, deliver, extend, still               string
	claim, claimLIFO, bury, probe                   string
	join, renew, leave                              string
	look, lost, promote, reapDue, reapLost          string
	giveUp, forget, pruneJobs, pruneKeys            string
	held, stats, queues, view, failures, place      string
	peekReady, peekScheduled, peekClaimed, peekDone string
	retryAll, retry, delete, release                string
	pause, resume, anyReady                         string
	count, purge                                    map[backends.State]string
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
		end:       r(endSQL),

		store: r(storeSQL), storeKeyed: r(storeKeyedSQL), keyed: r(keyedSQL), hold: r(holdSQL),
		ack: r(ackSQL), fail: r("WITH v AS MATERIALIZED (" + failVictims + ")" + failing), deliver: r(deliverSQL), extend: r(extendSQL), still: r(stillSQL),
		claim: r(claimHead + claimFIFO + claimTail), claimLIFO: r(claimHead + claimNewest + claimTail),
		bury: r(burySQL), probe: r(probeSQL),

		join: r(joinSQL + beatTail), renew: r(renewSQL + beatTail), leave: r(leaveSQL + beatTail), held: r(heldSQL),
		look: r(lookSQL), lost: r(ownersSQL), promote: r(promoteSQL),
		reapDue: r("WITH v AS MATERIALIZED (" + dueVictims + ")" + failing), reapLost: r(lostVictims + failing),
		giveUp: r(giveUpSQL), forget: r(forgetSQL), pruneJobs: r(pruneJobsSQL), pruneKeys: r(pruneKeysSQL),

		stats: r(statsSQL), queues: r(queuesSQL), count: each(countSQL), view: r(viewSQL), failures: r(failuresSQL), place: r(placeSQL),
		peekReady: r(peekReadySQL), peekScheduled: r(peekScheduledSQL), peekClaimed: r(peekClaimedSQL), peekDone: r(peekDoneSQL),
		retryAll: r(strings.Replace(retrySQL, "{ids}", "true", 1)),
		retry:    r(strings.Replace(retrySQL, "{ids}", "id = ANY($2::bigint[])", 1)),
		delete:   r(deleteSQL), release: r("WITH v AS MATERIALIZED (" + releaseVictims + ")" + failing), purge: each(purgeSQL),
		pause: r(pauseSQL), resume: r(resumeSQL), anyReady: r(anyReadySQL),
	}
}

// endSQL is the last of every transaction that writes, before its COMMIT: who
// the transaction is (nobody, where it wrote nothing), whether the claims' host
// lives, who else is at it, and how often jobs of the queues were given back.
const endSQL = `
SELECT coalesce(pg_current_xact_id_if_assigned()::text, ''),
  $1::bigint IS NULL OR EXISTS (SELECT FROM {s}.qsidecar_hosts WHERE host = $1 AND NOT dead AND NOT has_left),
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
  pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
  ARRAY(SELECT coalesce(q.returns, 0)
    FROM unnest($2::text[]) WITH ORDINALITY AS x (queue, n) LEFT JOIN {s}.qsidecar_queues q ON q.queue = x.queue
    ORDER BY x.n)`

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
  WHERE x.job = 0 OR EXISTS (SELECT FROM {s}.qsidecar_jobs o
    WHERE o.id = x.job AND o.state = 'claimed' AND o.token_host = x.host AND o.token_number = x.number)
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
SELECT x.n, k.job, coalesce(k.state, j.state, 'deleted')
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS x (queue, key, n)
JOIN {s}.qsidecar_keys k ON k.queue = x.queue AND k.key = x.key
LEFT JOIN {s}.qsidecar_jobs j ON j.id = k.job`

// holdSQL keeps claims from changing until the transaction ends.
const holdSQL = `
SELECT 1 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS l (id, host, number)
JOIN {s}.qsidecar_jobs j ON j.id = l.id AND j.state = 'claimed' AND j.token_host = l.host AND j.token_number = l.number
FOR UPDATE OF j`

// stillSQL finds which of some leases are valid, after a settle said that none was.
const stillSQL = `
SELECT 1 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS l (id, host, number, owner)
JOIN {s}.qsidecar_jobs j ON j.id = l.id AND j.state = 'claimed' AND j.token_host = l.host AND j.token_number = l.number
  AND (l.owner = 0 OR j.owner = l.owner)
LIMIT 1`

// ackSQL ends claims: as the claim's policy said, the row goes or stays.
const ackSQL = `
WITH l AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) WITH ORDINALITY AS l (id, host, number, result, n)
), d AS (
  DELETE FROM {s}.qsidecar_jobs j USING l
  WHERE j.id = l.id AND j.state = 'claimed' AND j.token_host = l.host AND j.token_number = l.number AND j.keep_ms IS NULL
  RETURNING l.n, j.id, j.queue, j.key
), u AS (
  UPDATE {s}.qsidecar_jobs j SET state = 'done', attempts = j.attempts + j.ahead::int, ahead = false, finished_at = {s}.qsidecar_now(),
    expires_at = {s}.qsidecar_now() + j.keep_ms * interval '1 ms', result = l.result, token_host = NULL, token_number = NULL,
    owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL
  FROM l
  WHERE j.id = l.id AND j.state = 'claimed' AND j.token_host = l.host AND j.token_number = l.number AND j.keep_ms IS NOT NULL
  RETURNING l.n, j.id, j.queue, j.key
), k AS (
  UPDATE {s}.qsidecar_keys k SET state = 'done'
  FROM (SELECT * FROM d WHERE key IS NOT NULL UNION ALL SELECT * FROM u WHERE key IS NOT NULL) AS x
  WHERE k.queue = x.queue AND k.key = x.key AND k.job = x.id
)
SELECT n FROM d UNION ALL SELECT n FROM u`

// victim are the columns that failing needs of a claimed row.
const victim = `j.id, j.queue, j.key, j.fence, j.claim_max, j.backoff_ms, j.backoff_max_ms, j.keep_dead_ms`

// failVictims are claims that end with a failure, or are given back (uncharged).
// A loss is a failure that its worker did not tell.
const failVictims = `
  SELECT l.n, ` + victim + `, j.attempts + j.ahead::int - l.uncharged::int AS attempts,
    CASE WHEN l.uncharged THEN j.losses WHEN l.loss THEN j.losses + 1 ELSE 0 END AS losses,
    CASE WHEN l.uncharged OR l.loss AND l.cause = 'sidecar_lost' THEN j.unrecorded ELSE 0 END AS unrecorded,
    l.uncharged, l.loss, l.bury, l.delay_ms, l.cause, l.message
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[], $6::boolean[], $7::boolean[], $8::bigint[],
      $9::text[], $10::text[]) WITH ORDINALITY
    AS l (id, host, number, owner, uncharged, loss, bury, delay_ms, cause, message, n)
  JOIN {s}.qsidecar_jobs j ON j.id = l.id AND j.state = 'claimed' AND j.token_host = l.host AND j.token_number = l.number
    AND (l.owner = 0 OR j.owner = l.owner)
  FOR UPDATE OF j`

// failing says what becomes of the victims v, which are locked: the fates of
// backends.Standing, for many at once. Ready ones go behind the waiting, except
// those that are given back.
const failing = `, w AS (
  SELECT v.*, CASE
    WHEN loss AND (uncharged OR losses = 1 AND cause <> 'timed_out') THEN 0
    ELSE coalesce(delay_ms, least(backoff_max_ms, backoff_ms * 2::double precision ^ least(greatest(attempts, 1) - 1, 50))::bigint)
    END AS wait_ms
  FROM v
), f AS MATERIALIZED (
  SELECT w.*, CASE WHEN bury OR NOT uncharged AND attempts >= claim_max THEN 'dead' WHEN wait_ms > 0 THEN 'scheduled' ELSE 'ready' END AS state
  FROM w
), u AS (
  UPDATE {s}.qsidecar_jobs j SET state = f.state, attempts = f.attempts, losses = f.losses, unrecorded = f.unrecorded, ahead = false,
    position = CASE WHEN f.state = 'ready' AND NOT (f.loss AND f.uncharged) THEN {s}.qsidecar_next() ELSE j.position END,
    ready_at = CASE WHEN f.state = 'ready' AND NOT (f.loss AND f.uncharged) THEN {s}.qsidecar_now() ELSE j.ready_at END,
    run_at = CASE WHEN f.state = 'scheduled' THEN {s}.qsidecar_now() + f.wait_ms * interval '1 ms' ELSE j.run_at END,
    last_error = CASE WHEN f.uncharged THEN j.last_error ELSE f.message END,
    finished_at = CASE WHEN f.state = 'dead' THEN {s}.qsidecar_now() END,
    expires_at = CASE WHEN f.state = 'dead' THEN {s}.qsidecar_now() + f.keep_dead_ms * interval '1 ms' END,
    token_host = NULL, token_number = NULL, owner = NULL, lease_ms = NULL, deadline = NULL, due_at = NULL, claimed_at = NULL, worker = NULL
  FROM f WHERE j.id = f.id
  RETURNING f.n, f.id, f.queue, f.state, f.cause, f.loss AND f.uncharged AS given_back, -j.priority::int AS urgency, j.position
), e AS (
  INSERT INTO {s}.qsidecar_failures (job, fence, attempt, cause, message, at)
  SELECT id, fence, attempts, cause, message, {s}.qsidecar_now() FROM f WHERE NOT uncharged
), k AS (
  UPDATE {s}.qsidecar_keys k SET state = 'dead' FROM f
  WHERE f.state = 'dead' AND k.queue = f.queue AND k.key = f.key AND k.job = f.id
), q AS (
  INSERT INTO {s}.qsidecar_queues AS q (queue, returns)
  SELECT DISTINCT queue, 1 FROM u WHERE given_back ORDER BY queue
  ON CONFLICT (queue) DO UPDATE SET returns = q.returns + 1
  RETURNING queue, returns
)
SELECT u.n, u.queue, u.state, u.cause, u.urgency, u.position, coalesce((SELECT q.returns FROM q WHERE q.queue = u.queue AND u.given_back), 0)
FROM u`

// deliverSQL records that jobs claimed ahead were handed out; twice is once.
const deliverSQL = `
UPDATE {s}.qsidecar_jobs j SET attempts = j.attempts + j.ahead::int, ahead = false, unrecorded = 0, worker = coalesce(j.worker, nullif(l.worker, ''))
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) WITH ORDINALITY AS l (id, host, number, worker, n)
WHERE j.id = l.id AND j.state = 'claimed' AND j.token_host = l.host AND j.token_number = l.number
RETURNING l.n`

// extendSQL renews or binds claims, whose worker then has them for certain. One
// that is only looked at is not written to.
const extendSQL = `
WITH l AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]) WITH ORDINALITY
    AS l (id, host, number, lease_ms, bind, worker, n)
), u AS (
  UPDATE {s}.qsidecar_jobs j SET
    attempts = j.attempts + j.ahead::int, ahead = false, unrecorded = 0,
    lease_ms = CASE WHEN l.bind <> 0 THEN NULL ELSE coalesce(nullif(l.lease_ms, 0), j.lease_ms) END,
    due_at = CASE WHEN l.bind <> 0 THEN j.deadline
      ELSE least({s}.qsidecar_now() + coalesce(nullif(l.lease_ms, 0), j.lease_ms) * interval '1 ms', j.deadline) END,
    owner = CASE WHEN l.bind <> 0 THEN l.bind ELSE j.owner END,
    worker = CASE WHEN l.bind <> 0 THEN nullif(l.worker, '') ELSE j.worker END
  FROM l
  WHERE j.id = l.id AND j.state = 'claimed' AND j.token_host = l.host AND j.token_number = l.number
    AND (l.bind <> 0 OR l.lease_ms > 0 OR j.lease_ms IS NOT NULL OR j.ahead OR j.unrecorded > 0)
  RETURNING l.n
)
SELECT n FROM u
UNION ALL
SELECT l.n FROM l JOIN {s}.qsidecar_jobs j ON j.id = l.id
WHERE j.state = 'claimed' AND j.token_host = l.host AND j.token_number = l.number AND l.bind = 0 AND l.lease_ms = 0
  AND j.lease_ms IS NULL AND NOT j.ahead AND j.unrecorded = 0`
