package sqlite

import (
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// managed is the mapping of the sidecar's own table.
var managed = backends.Mapping{
	Table: "qsidecar_jobs",
	Columns: func() map[string]string {
		m := map[string]string{}
		for name := range strings.FieldsSeq(`id queue state priority position max_attempts timeout_ms run_at
			enqueued_at ready_at attempts losses prefetch_losses prefetched fence claim_max backoff_ms backoff_max_ms retention_done_ms retention_dead_ms
			token_sidecar token_number owner lease_ms deadline due_at claimed_at worker finished_at expires_at key
			last_error headers result payload`) {
			m[name] = name
		}
		return m
	}(),
	States: map[backends.State]string{
		backends.StateReady: "ready", backends.StateScheduled: "scheduled", backends.StateClaimed: "claimed",
		backends.StateDone: "done", backends.StateDead: "dead",
	},
	// The statements name their indexes, so that no statistics and no version of SQLite
	// can turn a claim into a scan of the whole table.
	Indexes: map[string]string{
		"ready": "qsidecar_ready", "scheduled": "qsidecar_scheduled", "delayed": "qsidecar_delayed",
		"owned": "qsidecar_owned", "claimed": "qsidecar_claimed", "due": "qsidecar_due",
		"finished": "qsidecar_finished", "expiring": "qsidecar_expiring",
	},
}

var dialect = backends.Quoting{
	Name: quoteName,
	Text: func(s string) string { return `'` + strings.ReplaceAll(s, `'`, `''`) + `'` },
	Use:  func(index string) string { return "INDEXED BY " + quoteName(index) },
}

func quoteName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// statements are all statements on the job table and the tables next to it, rendered once.
type statements struct {
	numberSQL
	enqueueSQL
	claimSQL
	settleSQL
	heartbeatSQL
	maintenanceSQL
	inspectSQL
	all []string
}

// render renders every statement for the mapping m.
func render(m backends.Mapping) (*statements, error) {
	var failed error
	s := &statements{}
	r := func(statement string) string {
		sql, err := m.Render(dialect, statement)
		if err != nil && failed == nil {
			failed = err
		}
		s.all = append(s.all, sql)
		return sql
	}
	s.numberSQL, s.enqueueSQL, s.claimSQL = numberStatements(r), enqueueStatements(r), claimStatements(r)
	s.settleSQL, s.heartbeatSQL, s.maintenanceSQL = settleStatements(r), heartbeatStatements(r), maintenanceStatements(r)
	s.inspectSQL = inspectStatements(r)
	return s, failed
}

// numberSQL assigns ids and positions from one sequence, and numbers the commits.
type numberSQL struct {
	sequence, setSequence, mark, marked, oldMarked, oldMarks string
}

func numberStatements(r func(string) string) numberSQL {
	return numberSQL{
		sequence:    r(`SELECT seq, (SELECT max({id}) FROM {jobs}) FROM sqlite_sequence WHERE name = 'qsidecar_jobs'`),
		setSequence: r(`UPDATE sqlite_sequence SET seq = ? WHERE name = 'qsidecar_jobs'`),
		mark: r(`INSERT INTO qsidecar_commits (handle, number, at)
			VALUES (?, ?, ?)
			ON CONFLICT (handle) DO UPDATE
			SET number = excluded.number, at = excluded.at`),
		marked:    r(`SELECT number FROM qsidecar_commits WHERE handle = ?`),
		oldMarked: r(`SELECT 1 FROM qsidecar_commits WHERE at < ? LIMIT 1`),
		oldMarks:  r(`DELETE FROM qsidecar_commits WHERE at < ?`),
	}
}

// enqueueSQL stores jobs and their keys.
type enqueueSQL struct {
	insert, findKey, putKey, endKey, stateOf, hostAlive string
}

func enqueueStatements(r func(string) string) enqueueSQL {
	return enqueueSQL{
		insert: r(`INSERT INTO {jobs} ({id}, {queue}, {state}, {priority}, {position}, {max_attempts}, {timeout_ms}, {run_at},
				{enqueued_at}, {ready_at}, {key}, {headers}, {payload})
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`),
		findKey: r(`SELECT job, expires_at, state FROM qsidecar_keys WHERE queue = ? AND key = ?`),
		putKey: r(`INSERT INTO qsidecar_keys (queue, key, job, expires_at)
			VALUES (?, ?, ?, ?)
			ON CONFLICT (queue, key) DO UPDATE
			SET job = excluded.job, expires_at = excluded.expires_at, state = NULL`),
		endKey:    r(`UPDATE qsidecar_keys SET state = ? WHERE queue = ? AND key = ? AND job = ?`),
		stateOf:   r(`SELECT {state} FROM {jobs} WHERE {id} = ?`),
		hostAlive: r(`SELECT 1 FROM qsidecar_sidecars WHERE sidecar = ? AND NOT dead AND NOT has_left`),
	}
}

// bytesOf is the number of bytes of a row that count against the limits: those of its payload, and
// those of headers that are larger than any that a sidecar stores.
const bytesOf = `(octet_length({payload}) + CASE WHEN octet_length({headers}) > 65536 THEN octet_length({headers}) ELSE 0 END)`

// claimSQL claims ready jobs.
type claimSQL struct {
	paused, nextPrio, readyFIFO, readyLIFO, take, bury string
}

func claimStatements(r func(string) string) claimSQL {
	return claimSQL{
		paused: r(`SELECT 1 FROM qsidecar_queues WHERE queue = ? AND paused`),
		nextPrio: r(`SELECT {priority}
			FROM {jobs} {@ready}
			WHERE {state} = {=ready} AND {queue} = ? AND {priority} < ?
			ORDER BY {priority} DESC LIMIT 1`),
		readyFIFO: r(`SELECT {id}, ` + bytesOf + `,
				CASE WHEN ` + bytesOf + ` <= ? THEN CAST({payload} AS BLOB) END, {priority}, {attempts}, {fence},
				{max_attempts}, {timeout_ms}, {headers}, {key}, {last_error}, {enqueued_at}, {prefetch_losses}, {losses}
			FROM {jobs} {@ready}
			WHERE {state} = {=ready} AND {queue} = ?
			ORDER BY {priority} DESC, {position} LIMIT ?`),
		readyLIFO: r(`SELECT {id}, ` + bytesOf + `,
				CASE WHEN ` + bytesOf + ` <= ? THEN CAST({payload} AS BLOB) END, {priority}, {attempts}, {fence},
				{max_attempts}, {timeout_ms}, {headers}, {key}, {last_error}, {enqueued_at}, {prefetch_losses}, {losses}
			FROM {jobs} {@ready}
			WHERE {state} = {=ready} AND {queue} = ? AND {priority} = ?
			ORDER BY {position} DESC LIMIT ?`),
		take: r(`UPDATE {jobs}
			SET {state} = {=claimed}, {attempts} = ?, {prefetched} = ?, {fence} = ?, {claim_max} = ?, {backoff_ms} = ?,
				{backoff_max_ms} = ?, {retention_done_ms} = ?, {retention_dead_ms} = ?, {token_sidecar} = ?, {token_number} = ?, {owner} = ?,
				{lease_ms} = ?, {deadline} = ?, {due_at} = ?, {claimed_at} = ?, {worker} = ?
			WHERE {id} = ?`),
		bury: r(`UPDATE {jobs}
			SET {state} = {=dead}, {attempts} = ?, {claim_max} = ?, {retention_dead_ms} = ?, {finished_at} = ?,
				{expires_at} = ?, {last_error} = ?
			WHERE {id} = ?`),
	}
}

// settleSQL ends or renews claims.
type settleSQL struct {
	ackPlain, claimed, leave, remove, fail, renew, bind, disown, deliver, setWorker, record, held string
}

func settleStatements(r func(string) string) settleSQL {
	return settleSQL{
		ackPlain: r(`DELETE
			FROM {jobs}
			WHERE {id} = ? AND {state} = {=claimed} AND {token_sidecar} = ? AND {token_number} = ? AND {retention_done_ms} IS NULL AND {key} IS NULL`),
		claimed: r(`SELECT {queue}, {key}, {position}, {ready_at}, {attempts}, {claim_max}, {losses}, {backoff_ms},
				{backoff_max_ms}, {retention_done_ms}, {retention_dead_ms}, {lease_ms}, {deadline}, {due_at}, {last_error}, {owner},
				{prefetched}, {prefetch_losses}, {token_sidecar}, {token_number}, {worker}, {claimed_at}
			FROM {jobs}
			WHERE {id} = ? AND {state} = {=claimed}`),
		leave: r(`UPDATE {jobs}
			SET {state} = ?, {position} = ?, {ready_at} = ?, {run_at} = coalesce(?, {run_at}), {attempts} = ?,
				{losses} = ?, {prefetched} = 0, {prefetch_losses} = ?, {last_error} = ?, {finished_at} = ?, {expires_at} = ?, {result} = ?, {token_sidecar} = NULL,
				{token_number} = NULL, {owner} = NULL, {lease_ms} = NULL, {deadline} = NULL, {due_at} = NULL,
				{claimed_at} = NULL, {worker} = NULL
			WHERE {id} = ?`),
		remove: r(`DELETE FROM {jobs} WHERE {id} = ?`),
		fail: r(`INSERT INTO qsidecar_failures (job, number, attempt, cause, message, at)
			VALUES (?1, (SELECT coalesce(max(number), 0) + 1
			FROM qsidecar_failures
			WHERE job = ?1), ?2, ?3, ?4, ?5)`),
		disown: r(`UPDATE {jobs} SET {owner} = 0 WHERE {id} = ?`),
		renew:  r(`UPDATE {jobs} SET {lease_ms} = ?, {due_at} = ? WHERE {id} = ?`),
		bind:   r(`UPDATE {jobs} SET {lease_ms} = NULL, {due_at} = {deadline}, {owner} = ?, {worker} = ? WHERE {id} = ?`),
		deliver: r(`UPDATE {jobs}
			SET {attempts} = {attempts} + {prefetched}, {prefetched} = 0, {prefetch_losses} = 0,
				{deadline} = CASE WHEN {due_at} IS NULL THEN ?1 + max({deadline} - {claimed_at} - ?2, 0) ELSE {deadline} END,
				{due_at} = coalesce({due_at}, ?1 + max({deadline} - {claimed_at} - ?2, 0)), {worker} = coalesce({worker}, ?3)
			WHERE {id} = ?4 AND {state} = {=claimed} AND {token_sidecar} = ?5 AND {token_number} = ?6`),
		setWorker: r(`UPDATE {jobs} SET {worker} = ? WHERE {id} = ?`),
		record:    r(`UPDATE {jobs} SET {attempts} = {attempts} + {prefetched}, {prefetched} = 0, {prefetch_losses} = 0, {deadline} = ?, {due_at} = ? WHERE {id} = ?`),
		held: r(`SELECT {id}, {token_sidecar}, {token_number}, {queue}, {lease_ms}
			FROM {jobs} {@owned}
			WHERE {state} = {=claimed} AND {owner} = ? AND {id} > ?
			ORDER BY {id} LIMIT ?`),
	}
}

// heartbeatSQL records heartbeats and lists the other sidecars.
type heartbeatSQL struct {
	join, heartbeat, farewell, peers string
}

func heartbeatStatements(r func(string) string) heartbeatSQL {
	return heartbeatSQL{
		join: r(`INSERT INTO qsidecar_sidecars (name, heartbeats, expires_at, timeout_ms, stats_leader, version, leases, sidecar)
			VALUES (?, 1, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (sidecar) DO UPDATE
			SET name = excluded.name, heartbeats = heartbeats + 1, expires_at = excluded.expires_at, timeout_ms = excluded.timeout_ms,
				stats_leader = excluded.stats_leader, version = excluded.version, leases = excluded.leases
			WHERE NOT dead AND NOT has_left`),
		heartbeat: r(`UPDATE qsidecar_sidecars SET name = ?, heartbeats = heartbeats + 1, expires_at = ?, timeout_ms = ?, stats_leader = ?, version = ?, leases = ?
			WHERE sidecar = ? AND NOT dead AND NOT has_left`),
		farewell: r(`UPDATE qsidecar_sidecars SET name = ?, heartbeats = heartbeats + 1, expires_at = ?, timeout_ms = ?, stats_leader = ?, version = ?, leases = ?, has_left = 1
			WHERE sidecar = ? AND NOT dead`),
		peers: r(`SELECT sidecar, heartbeats, expires_at - ?, dead, has_left, coalesce(timeout_ms, -1), stats_leader, name, coalesce(version, ''), coalesce(leases, -1)
			FROM qsidecar_sidecars WHERE sidecar <> ? ORDER BY sidecar`),
	}
}

// maintenanceSQL does the maintenance.
type maintenanceSQL struct {
	scheduled, never, promote, due, nextOwner, owned, lives, markSilent, deadHosts, forget, expired, expiredKeys, dropKey, anyReady string
}

func maintenanceStatements(r func(string) string) maintenanceSQL {
	return maintenanceSQL{
		scheduled: r(`SELECT {id}, {queue}, {run_at}
			FROM {jobs} {@scheduled}
			WHERE {state} = {=scheduled}
			ORDER BY {run_at}, {id} LIMIT ?`),
		never: r(`SELECT {id}
			FROM {jobs} {@scheduled}
			WHERE {state} = {=scheduled} AND {run_at} > 253402300799999
			ORDER BY {run_at}, {id} LIMIT 1`),
		promote:    r(`UPDATE {jobs} SET {state} = {=ready}, {position} = ?, {ready_at} = ? WHERE {id} = ?`),
		due:        r(`SELECT {id}, {due_at}, {deadline} FROM {jobs} {@due} WHERE {due_at} IS NOT NULL ORDER BY {due_at} LIMIT ?`),
		nextOwner:  r(`SELECT {owner} FROM {jobs} {@owned} WHERE {state} = {=claimed} AND {owner} >= ? ORDER BY {owner} LIMIT 1`),
		owned:      r(`SELECT {id} FROM {jobs} {@owned} WHERE {state} = {=claimed} AND {owner} = ? ORDER BY {id} LIMIT ?`),
		lives:      r(`SELECT 1 FROM qsidecar_sidecars WHERE sidecar = ? AND NOT dead`),
		markSilent: r(`UPDATE qsidecar_sidecars SET dead = 1 WHERE sidecar = ? AND heartbeats = ? AND (expires_at <= ? OR NOT has_left AND expires_at > ?) AND NOT dead`),
		deadHosts:  r(`SELECT sidecar FROM qsidecar_sidecars WHERE dead`),
		forget:     r(`DELETE FROM qsidecar_sidecars WHERE sidecar = ? AND dead`),
		expired:    r(`SELECT {id}, {queue}, {expires_at} FROM {jobs} {@expiring} WHERE {expires_at} <= ? ORDER BY {expires_at} LIMIT ?`),
		expiredKeys: r(`SELECT queue, key, expires_at
			FROM qsidecar_keys INDEXED BY qsidecar_keys_expiring
			WHERE state IS NOT NULL AND expires_at <= ?
			ORDER BY expires_at LIMIT ?`),
		dropKey:  r(`DELETE FROM qsidecar_keys WHERE queue = ? AND key = ?`),
		anyReady: r(`SELECT 1 FROM {jobs} {@ready} WHERE {state} = {=ready} AND {queue} = ? LIMIT 1`),
	}
}

// inspectSQL implements the Inspector.
type inspectSQL struct {
	queuesReady, queuesScheduled, queuesClaimed, queuesFinished, queuesPaused, countReady, countScheduled, countClaimed, countDone, countDead, oldestReady, oldestClaimed, place, peekSamePrio, peekReady, peekScheduled, peekClaimed, peekDone, peekDead, newestDone, newestDead, size, view, failures, inState, retry, schedule, moveBack, deadKeys, pause, resume string
}

func inspectStatements(r func(string) string) inspectSQL {
	return inspectSQL{
		// Statements that count all queues return the queue, the state, the number of rows, and the time
		// when the oldest row entered the state. Within a priority, positions increase in that order.
		queuesReady: r(`SELECT name, 'ready', count(*), (SELECT {ready_at}
				FROM {jobs} {@ready}
				WHERE {state} = {=ready} AND {queue} = name AND {priority} = above
				ORDER BY {position} LIMIT 1)
			FROM (SELECT {queue} AS name, {priority} AS above
				FROM {jobs} {@ready}
				WHERE {state} = {=ready} AND {queue} > ?
				ORDER BY {queue}, {priority} DESC LIMIT ?)
			GROUP BY name, above ORDER BY name, above DESC`),
		queuesScheduled: r(`SELECT queue, 'scheduled', count(*), NULL
			FROM (SELECT {queue} AS queue FROM {jobs} {@delayed} WHERE {state} = {=scheduled} AND {queue} > ? ORDER BY {queue} LIMIT ?)
			GROUP BY queue ORDER BY queue`),
		queuesClaimed: r(`SELECT queue, 'claimed', count(*), min(at)
			FROM (SELECT {queue} AS queue, {claimed_at} AS at FROM {jobs} {@claimed} WHERE {state} = {=claimed} AND {queue} > ? ORDER BY {queue} LIMIT ?)
			GROUP BY queue ORDER BY queue`),
		queuesFinished: r(`SELECT queue, CASE state WHEN {=done} THEN 'done' ELSE 'dead' END, count(*), NULL
			FROM (SELECT {queue} AS queue, {state} AS state
				FROM {jobs} {@finished}
				WHERE {finished_at} IS NOT NULL AND ({queue}, {state}) > (?, ?)
				ORDER BY {queue}, {state} LIMIT ?)
			GROUP BY queue, state ORDER BY queue, state`),
		queuesPaused:   r(`SELECT queue FROM qsidecar_queues WHERE paused`),
		countReady:     r(`SELECT count(*) FROM (SELECT 1 FROM {jobs} {@ready} WHERE {state} = {=ready} AND {queue} = ? LIMIT ?)`),
		countScheduled: r(`SELECT count(*) FROM (SELECT 1 FROM {jobs} {@delayed} WHERE {state} = {=scheduled} AND {queue} = ? LIMIT ?)`),
		countClaimed:   r(`SELECT count(*) FROM (SELECT 1 FROM {jobs} {@claimed} WHERE {state} = {=claimed} AND {queue} = ? LIMIT ?)`),
		countDone: r(`SELECT count(*)
			FROM (SELECT 1
			FROM {jobs} {@finished}
			WHERE {finished_at} IS NOT NULL AND {state} = {=done} AND {queue} = ? LIMIT ?)`),
		countDead: r(`SELECT count(*)
			FROM (SELECT 1
			FROM {jobs} {@finished}
			WHERE {finished_at} IS NOT NULL AND {state} = {=dead} AND {queue} = ? LIMIT ?)`),
		oldestReady: r(`SELECT {ready_at}
			FROM {jobs} {@ready}
			WHERE {state} = {=ready} AND {queue} = ? AND {priority} = ?
			ORDER BY {position} LIMIT 1`),
		oldestClaimed: r(`SELECT {claimed_at}
			FROM {jobs} {@claimed}
			WHERE {state} = {=claimed} AND {queue} = ?
			ORDER BY {claimed_at} LIMIT 1`),
		place: r(`SELECT {priority}, {position}, {run_at}, {claimed_at}, {finished_at}
			FROM {jobs}
			WHERE {id} = ? AND {queue} = ?`),
		peekSamePrio: r(`SELECT {id}
			FROM {jobs} {@ready}
			WHERE {state} = {=ready} AND {queue} = ? AND {priority} = ? AND {position} > ?
			ORDER BY {position} LIMIT ?`),
		peekReady: r(`SELECT {id}
			FROM {jobs} {@ready}
			WHERE {state} = {=ready} AND {queue} = ? AND {priority} < ?
			ORDER BY {priority} DESC, {position} LIMIT ?`),
		peekScheduled: r(`SELECT {id}
			FROM {jobs} {@delayed}
			WHERE {state} = {=scheduled} AND {queue} = ? AND ({run_at}, {id}) > (?, ?)
			ORDER BY {run_at}, {id} LIMIT ?`),
		peekClaimed: r(`SELECT {id}
			FROM {jobs} {@claimed}
			WHERE {state} = {=claimed} AND {queue} = ? AND ({claimed_at}, {id}) > (?, ?)
			ORDER BY {claimed_at}, {id} LIMIT ?`),
		peekDone: r(`SELECT {id}
			FROM {jobs} {@finished}
			WHERE {finished_at} IS NOT NULL AND {state} = {=done} AND {queue} = ? AND ({finished_at}, {id}) > (?, ?)
			ORDER BY {finished_at}, {id} LIMIT ?`),
		newestDone: r(`SELECT {id}
			FROM {jobs} {@finished}
			WHERE {finished_at} IS NOT NULL AND {state} = {=done} AND {queue} = ? AND ({finished_at}, {id}) < (?, ?)
			ORDER BY {finished_at} DESC, {id} DESC LIMIT ?`),
		peekDead: r(`SELECT {id}
			FROM {jobs} {@finished}
			WHERE {finished_at} IS NOT NULL AND {state} = {=dead} AND {queue} = ? AND ({finished_at}, {id}) > (?, ?)
			ORDER BY {finished_at}, {id} LIMIT ?`),
		newestDead: r(`SELECT {id}
			FROM {jobs} {@finished}
			WHERE {finished_at} IS NOT NULL AND {state} = {=dead} AND {queue} = ? AND ({finished_at}, {id}) < (?, ?)
			ORDER BY {finished_at} DESC, {id} DESC LIMIT ?`),
		size: r(`SELECT ` + bytesOf + ` + coalesce(octet_length({result}), 0) FROM {jobs} WHERE {id} = ? AND {queue} = ?`),
		view: r(`SELECT {queue}, {state}, CAST({payload} AS BLOB), {priority}, {attempts}, coalesce({claim_max},
				{max_attempts}), {enqueued_at}, {run_at}, {claimed_at}, {finished_at}, {worker}, {key}, {headers}, {result},
				{last_error}
			FROM {jobs}
			WHERE {id} = ?`),
		failures: r(`SELECT attempt, cause, message, at FROM qsidecar_failures WHERE job = ? ORDER BY number`),
		inState:  r(`SELECT {queue}, {state}, {key} FROM {jobs} WHERE {id} = ?`),
		retry: r(`UPDATE {jobs}
			SET {state} = {=ready}, {position} = ?, {ready_at} = ?, {attempts} = 0, {losses} = 0, {prefetch_losses} = 0,
				{finished_at} = NULL,
				{expires_at} = NULL
			WHERE {id} = ?`),
		schedule: r(`UPDATE {jobs} SET {state} = {=scheduled}, {priority} = ?, {run_at} = ? WHERE {id} = ?`),
		moveBack: r(`UPDATE {jobs}
			SET {state} = {=ready}, {priority} = ?, {run_at} = NULL, {position} = ?, {ready_at} = ?
			WHERE {id} = ?`),
		deadKeys: r(`SELECT j.{key}, k.job IS NOT NULL AND k.job <> j.{id} AND (k.state IS NULL OR k.expires_at > ?)
			FROM {jobs} AS j {@finished}
			LEFT JOIN qsidecar_keys AS k ON k.queue = j.{queue} AND k.key = j.{key}
			WHERE j.{finished_at} IS NOT NULL AND j.{state} = {=dead} AND j.{queue} = ? AND j.{key} IS NOT NULL`),
		pause:  r(`INSERT INTO qsidecar_queues (queue, paused) VALUES (?, 1) ON CONFLICT (queue) DO UPDATE SET paused = 1`),
		resume: r(`DELETE FROM qsidecar_queues WHERE queue = ?`),
	}
}
