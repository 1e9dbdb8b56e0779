package mysql

import (
	"embed"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/sqltext"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// sqlFiles hold the statements: see package sqltext.
//
//go:embed sql/*.sql
var sqlFiles embed.FS

// statements holds the SQL that does not depend on arguments. SQL that lists rows is written where it is
// used.
//
// Each statement follows a rule: its cost must follow from its text, whatever statistics the server has
// about the tables. A statement reaches qsidecar_jobs by id = or id IN (…). Otherwise it names the index,
// one `segment`, the order of the index and a LIMIT. It never joins qsidecar_jobs.
type statements struct {
	clock string // the SQL expression for the present time
	skip  string // follows FOR UPDATE: skip rows that other transactions have locked

	// sql/tx.sql
	begin, rollback, mark, markIf, marked, committed, seal, sidecarAlive, readClock string
	// sql/heartbeat.sql
	join, renew, leave, lastWatcher, peers string
	// sql/write.sql
	register, countReturn string
	// sql/command.sql
	pause, resume, anyInSegment, takeKeyBack string
	// sql/inspect.sql
	queuesPaused, queuesClaimed, countClaimed, countSegment, oldestReady, peekClaimed, keyHolder, claimedBy, keysTaken string
	// sql/maintain.sql
	markDead, findDue, findArrived, expiring, expiringKeys, lives, owned, forget string
	// sql/cleanup.sql
	failuresAfter, described, describe, scheduledAfter, keysAfter, endKey, oldCommits, deleteOldCommits, registeredAfter, unregister string
	// sql/sequence.sql
	highestNamed, highestID, nextID, storeID, deleteID string
}

// render returns the statements. Parameters are named in the order in which the callers pass their values, once for each use.
func render(clock string, v session.Server) *statements {
	t := sqltext.Read(sqlFiles, "", map[string]string{
		"now": clock, "jobs": table.Jobs, "bytes": table.Bytes, "uncovered": table.Uncovered, "no_pushdown": table.NoPushdown,
		"in_time": strconv.FormatFloat(backends.InTime, 'g', -1, 64), "other_watchers": strconv.Itoa(backends.Watchers - 1),
		"counter_days": strconv.Itoa(counterDays),
	})
	s := &statements{
		clock: clock,

		begin:        t.Get("begin", ""),
		rollback:     t.Get("rollback", ""),
		mark:         t.Get("mark", "handle number"),
		markIf:       t.Get("mark_if", "handle acked number"),
		marked:       t.Get("marked", "handle"),
		committed:    t.Get("committed", "handle"),
		seal:         t.Get("seal", "handle number before"),
		sidecarAlive: t.Get("sidecar_alive", "sidecar"),
		readClock:    t.Get("clock", ""),

		join:        t.Get("join", "sidecar name timeout_us timeout_ms stats_leader version leases"),
		renew:       t.Get("renew", "name timeout_us timeout_ms stats_leader version leases sidecar"),
		leave:       t.Get("leave", "name timeout_us timeout_ms stats_leader version leases sidecar"),
		lastWatcher: t.Get("last_watcher", "sidecar"),
		peers:       t.Get("peers", "all_peers sidecar"),

		register:    t.Get("register", "queue"),
		countReturn: t.Get("count_return", "queue"),

		pause:        t.Get("pause", "queue"),
		resume:       t.Get("resume", "queue"),
		anyInSegment: t.Get("any_in_segment", "segment"),
		takeKeyBack:  t.Get("take_key_back", "id now id queue key"),

		queuesPaused:  t.Get("queues_paused", ""),
		queuesClaimed: t.Get("queues_claimed", ""),
		countClaimed:  t.Get("count_claimed", "queue limit"),
		countSegment:  t.Get("count_segment", "segment limit"),
		oldestReady:   t.Get("oldest_ready", "segment after"),
		peekClaimed:   t.Get("peek_claimed", "queue after_at after_at after_id limit"),
		keyHolder:     t.Get("key_holder", "queue key"),
		claimedBy:     t.Get("claimed_by", "segment after limit"),
		keysTaken:     t.Get("keys_taken", "segment segment"),

		markDead:     t.Get("mark_dead", "sidecar heartbeats timeout_us"),
		findDue:      t.Get("find_due", "segment from limit"),
		findArrived:  t.Get("find_arrived", "limit"),
		expiring:     t.Get("expiring", "from limit"),
		expiringKeys: t.Get("expiring_keys", "from limit"),
		lives:        t.Get("lives", "sidecar"),
		owned:        t.Get("owned", "segment limit"),
		forget:       t.Get("forget", "sidecar"),

		failuresAfter:    t.Get("failures_after", "job limit"),
		described:        t.Get("described", ""),
		describe:         t.Get("describe", "version min_program database"),
		scheduledAfter:   t.Get("scheduled_after", "segment"),
		keysAfter:        t.Get("keys_after", "queue queue key limit"),
		endKey:           t.Get("end_key", "state queue key job"),
		oldCommits:       t.Get("old_commits", "limit"),
		deleteOldCommits: t.Get("delete_old_commits", "limit"),
		registeredAfter:  t.Get("registered_after", "after limit"),
		unregister:       t.Get("unregister", "queue requeues"),

		highestNamed: t.Get("highest_named", "limit"),
		highestID:    t.Get("highest_id", ""),
		nextID:       t.Get("next_id", ""),
		storeID:      t.Get("store_id", "id"),
		deleteID:     t.Get("delete_id", "id"),
	}
	t.Done()
	if v.Galera {
		s.begin, s.rollback = galeraBegin, "ROLLBACK;\n"+galeraEnd
	}
	if v.SkipLocked {
		s.skip = " SKIP LOCKED"
	}
	return s
}
