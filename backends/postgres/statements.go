package postgres

import (
	"embed"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/sqltext"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// sqlFiles hold the statements: see package sqltext.
//
//go:embed sql/*.sql
var sqlFiles embed.FS

// statements are the statements of sqlFiles with the schema's name inserted.
//
// The cost of a statement must follow from its text, and not from the server's estimates about
// the tables. Plans are kept, and a table that was empty when its statistics were taken can hold
// millions of rows a minute later. So a statement reads a table by `id = ANY(array)`, in the
// order of an index with a LIMIT, or by a LATERAL query with a LIMIT. It never joins: the
// server could reverse a join, or read the whole table. The values for each row come from
// arrays sorted by id, and width_bucket finds their index.
type statements struct {
	// sql/tx.sql
	begin, beginRead, unsynced, unsyncedClaim, status, statusOfOne, statusOfMany, epoch, newEpoch, otherEpoch string
	plainEpoch                                                                                                string
	// sql/sequence.sql
	behind, lockSequence, repair, draw string
	// sql/write.sql
	insert, insertMore, insertKeyed, keyed, ack, lock, findLocked, findLockedKeys, deliver, deleteDone, endClaims, renewClaims string
	// sql/claim.sql
	claim, claimExcept, claimLIFO, claimLIFOExcept, claimLean, bury, removeExpired, expire, probe, owners string
	// sql/gates.sql
	lockGate, enterClaimed, leaveCapped, readGate, moveGate, enterCapped, lockLimits, setLimits, allLimits string
	// sql/groups.sql
	noteGroups, noteAll, leaveGroups, lockStripes, lockFreeStripes, takeNotes, takeArrived, findWaiting, leaveDelayed, block, admit, groupSlots, findGroups string
	// sql/heartbeat.sql
	join, renew, leave string
	// sql/maintain.sql
	look, lookJobs, lookKeys, cancelled, forgetCancelled, forgetOwners, promote, findScheduled, findExpired, lockExpired, lockDue, lockLost, markDead, forget, pruneJobs, pruneKeys string
	// sql/command.sql
	retry, retryFrom, change, lockClaimed, states, cancelWaiting, noteCancelled, delete, pause, resume, anyReady string
	// sql/inspect.sql
	stats, oldestOf, queuesReady, queuesBlocked, queuesScheduled, queuesFinished, queuesClaimed, queuesPaused, place, peekReady, peekBlocked, peekScheduled string
	peekClaimed, peekDone, peekNewest, chosen, keyHolder, view, failures, claimedBy                                                                         string

	// sql/history.sql
	addHour, forgetHours, clock, hours string

	count, purge map[backends.State]string // sql/inspect.sql, sql/command.sql
}

// render returns the statements. Parameters are named in the order in which the callers pass their values.
func render(schema string) *statements {
	t := sqltext.Read(sqlFiles, "$", map[string]string{
		"s": quoteName(schema), "max_version": strconv.Itoa(migrate.Latest), "watchers": strconv.Itoa(backends.Watchers),
		"in_time": strconv.FormatFloat(backends.InTime, 'g', -1, 64), "due_within": strconv.FormatInt(core.DueWithin.Milliseconds(), 10),
	})
	each := func(name, params string, states ...backends.State) map[backends.State]string {
		all := map[backends.State]string{}
		for _, state := range states {
			all[state] = t.Get(name+"_"+string(state), params)
		}
		return all
	}
	const (
		heartbeat = "sidecar name timeout_ms all_peers stats_leader version leases"
		claim     = "limit max_bytes max_payload queues policies from_urgencies from_positions to_urgencies to_positions claim_maxes timeouts " +
			"backoffs backoff_maxes retentions_done retentions_dead sidecars numbers leases worker_indexes workers owner at_least_one prefetches"
	)
	const look = "prune owners queues policies from_urgencies from_positions to_urgencies to_positions requeues_of jobs_from watched due_from sidecar schedules"
	s := &statements{
		begin:         t.Get("begin", ""),
		beginRead:     t.Get("begin_read", ""),
		unsynced:      t.Get("unsynced", ""),
		unsyncedClaim: t.Get("unsynced_claim", ""),
		status:        t.Get("status", ""),
		statusOfOne:   t.Get("status_of_one", "sidecar queues"),
		statusOfMany:  t.Get("status_of_many", "sidecar queues"),
		epoch:         t.Get("epoch", ""),
		newEpoch:      t.Get("new_epoch", "random"),
		otherEpoch:    t.Get("other_epoch", "system"),
		plainEpoch:    t.Get("plain_epoch", "random"),

		behind:       t.Get("behind", ""),
		lockSequence: t.Get("lock_sequence", ""),
		repair:       t.Get("repair", ""),
		draw:         t.Get("draw", ""),

		insert:         t.Get("insert", "queues payloads priorities delays run_ats max_attempts timeouts headers"),
		insertMore:     t.Get("insert_more", "queues payloads priorities delays run_ats max_attempts timeouts headers groups start_befores start_withins on_expiries retentions_dead retains"),
		insertKeyed:    t.Get("insert_keyed", "queues payloads priorities delays run_ats max_attempts timeouts headers keys key_ttls key_states groups start_befores start_withins on_expiries retentions_dead retains"),
		keyed:          t.Get("keyed", "queues keys"),
		ack:            t.Get("ack", "ids sidecars numbers"),
		lock:           t.Get("lock", "ids"),
		findLocked:     t.Get("find_locked", "ids"),
		findLockedKeys: t.Get("find_locked_keys", "ids"),
		deliver:        t.Get("deliver", "ids sidecars numbers workers agos"),
		deleteDone:     t.Get("delete_done", "ids"),
		endClaims:      t.Get("end_claims", "ids states attempts losses prefetch_losses backs delays causes messages results"),
		renewClaims:    t.Get("renew_claims", "ids attempts leases owners agos new_dues set_workers workers"),

		claim:           t.Get("claim", claim),
		claimExcept:     t.Get("claim_except", claim+" except"),
		claimLIFO:       t.Get("claim_lifo", claim),
		claimLIFOExcept: t.Get("claim_lifo_except", claim+" except"),
		claimLean: t.Get("claim_lean", "limit max_bytes max_payload queue from_urgencies from_positions to_urgencies to_positions claim_max timeout "+
			"backoff backoff_max retention_done retention_dead token_sidecar numbers lease worker_indexes workers owner prefetch"),
		bury:          t.Get("bury", "ids claim_maxes retentions_dead messages"),
		removeExpired: t.Get("remove_expired", "ids"),
		expire:        t.Get("expire", "ids retentions_dead message"),
		probe:         t.Get("probe", "queue urgencies lows highs"),
		owners:        t.Get("owners", ""),

		join:  t.Get("join", heartbeat),
		renew: t.Get("renew", heartbeat),
		leave: t.Get("leave", heartbeat),

		lockGate:     t.Get("lock_gate", "queue"),
		enterClaimed: t.Get("enter_claimed", "queue settles_ms"),
		leaveCapped:  t.Get("leave_capped", "queue"),
		readGate:     t.Get("read_gate", "queue"),
		moveGate:     t.Get("move_gate", "queue next advance"),
		enterCapped:  t.Get("enter_capped", "queue ids"),
		lockLimits:   t.Get("lock_limits", "queue"),
		setLimits:    t.Get("set_limits", "queue max_claimed rate rate_ms burst group_limit group_skips group_ready"),
		allLimits:    t.Get("all_limits", ""),

		noteGroups:      t.Get("note_groups", "queues groups"),
		noteAll:         t.Get("note_all", "queue"),
		leaveGroups:     t.Get("leave_groups", "ids"),
		lockStripes:     t.Get("lock_stripes", "queues stripes"),
		lockFreeStripes: t.Get("lock_free_stripes", "queues stripes"),
		takeNotes:       t.Get("take_notes", "queues groups limit"),
		takeArrived:     t.Get("take_arrived", "queues groups limit"),
		findWaiting:     t.Get("find_waiting", "queues groups"),
		leaveDelayed:    t.Get("leave_delayed", "queues groups limit"),
		block:           t.Get("block", "queues groups limit"),
		admit:           t.Get("admit", "queues groups limit"),
		groupSlots:      t.Get("group_slots", "queue group limit"),
		findGroups:      t.Get("find_groups", "noted_queue noted_group noted_limit arrived_queue arrived_group arrived_limit every_queue every_group every_limit"),

		look:            t.Get("look", look),
		lookJobs:        t.Get("look_jobs", look),
		cancelled:       t.Get("cancelled", "owner"),
		forgetCancelled: t.Get("forget_cancelled", "owner sidecars numbers"),
		forgetOwners:    t.Get("forget_owners", ""),
		lookKeys:        t.Get("look_keys", "from"),
		promote:         t.Get("promote", "limit from only"),
		findScheduled:   t.Get("find_scheduled", "limit from"),
		findExpired:     t.Get("find_expired", "limit from"),
		lockExpired:     t.Get("lock_expired", "limit from only"),
		lockDue:         t.Get("lock_due", "limit from"),
		lockLost:        t.Get("lock_lost", "owners limit"),
		markDead:        t.Get("mark_dead", "sidecars heartbeats"),
		forget:          t.Get("forget", ""),
		pruneJobs:       t.Get("prune_jobs", "limit from only"),
		pruneKeys:       t.Get("prune_keys", "limit from"),

		retry:         t.Get("retry", "queue ids"),
		retryFrom:     t.Get("retry_from", "queue after_at after_id limit"),
		change:        t.Get("change", "queue ids priority delay_ms within_ms run_at"),
		lockClaimed:   t.Get("lock_claimed", "queue ids"),
		states:        t.Get("states", "queue ids"),
		cancelWaiting: t.Get("cancel_waiting", "queue ids retention_dead message"),
		noteCancelled: t.Get("note_cancelled", "owners sidecars numbers"),
		delete:        t.Get("delete", "queue ids"),
		pause:         t.Get("pause", "queue"),
		resume:        t.Get("resume", "queue"),
		anyReady:      t.Get("any_ready", "queue"),

		stats:           t.Get("stats", "queue limit"),
		oldestOf:        t.Get("oldest_of", "queues"),
		queuesReady:     t.Get("queues_ready", "after limit"),
		queuesBlocked:   t.Get("queues_blocked", "after limit"),
		queuesScheduled: t.Get("queues_scheduled", "after limit"),
		queuesFinished:  t.Get("queues_finished", "after limit after_state"),
		queuesClaimed:   t.Get("queues_claimed", ""),
		queuesPaused:    t.Get("queues_paused", ""),
		place:           t.Get("place", "id queue"),
		peekReady:       t.Get("peek_ready", "queue after_urgency after_position limit"),
		peekBlocked:     t.Get("peek_blocked", "queue after_group after_urgency after_position limit"),
		peekScheduled:   t.Get("peek_scheduled", "queue after_at after_id limit"),
		peekClaimed:     t.Get("peek_claimed", "queue after_at after_id limit"),
		peekDone:        t.Get("peek_done", "queue after_at after_id limit state"),
		peekNewest:      t.Get("peek_newest", "queue before_at before_id limit state"),
		chosen:          t.Get("chosen", "ids queue"),
		keyHolder:       t.Get("key_holder", "queue key"),
		view:            t.Get("view", "ids queue"),
		failures:        t.Get("failures", "ids"),
		claimedBy:       t.Get("claimed_by", "owner after limit"),

		addHour:     t.Get("add_hour", "hour queue ready enqueued acked failed run_1ms run_5ms run_25ms run_100ms run_250ms run_500ms run_1s run_2500ms run_5s run_10s run_30s run_1m run_5m run_30m run_1h run_more"),
		forgetHours: t.Get("forget_hours", "before"),
		clock:       t.Get("clock", ""),
		hours:       t.Get("hours", "queue"),

		count: each("count", "queue limit", states...),
		purge: each("purge", "queue limit after_first after_second", backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead),
	}
	s.purge[backends.StateBlocked] = t.Get("purge_blocked", "queue limit after_group after_urgency after_position")
	t.Done()
	return s
}

var states = []backends.State{backends.StateReady, backends.StateBlocked, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead}
