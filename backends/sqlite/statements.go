package sqlite

import (
	"embed"
	"sync"

	"github.com/qsidecar/qsidecar/backends/internal/sqltext"
)

// sqlFiles hold the statements: see package sqltext.
//
//go:embed sql/*.sql
var sqlFiles embed.FS

// statements are the statements of sqlFiles.
type statements struct {
	// sql/tx.sql
	sequence, setSequence, lastNumber, restoreSequence, mark, marked, sidecarAlive string
	// sql/write.sql
	insert, findKey, putKey, endKey, stateOf, ackPlain, claimed, leave, remove, fail, renew, bind, disown, deliver, setWorker string
	record                                                                                                                    string
	// sql/claim.sql
	closed, paused, nextPriority, readyFIFO, readyLIFO, take, bury, expiring, expire string
	// sql/gates.sql
	enterClaimed, leaveCapped, readGate, moveGate, enterCapped, setLimits, allLimits string
	// sql/groups.sql
	noteGroup, leaveGroup, takeNote, takeArrived, slots, delayed, admitted, blocked, admit, block, groupSlots, nextNoted, nextArrived, nextBlocked, nextAdmitted string
	// sql/heartbeat.sql
	join, heartbeat, farewell, peers string
	// sql/maintain.sql
	scheduled, never, promote, unstarted, due, nextOwner, owned, lives, markSilent, deadSidecars, anyDead, firesAt, batchesDue, forget, expired, expiredKeys, dropKey string
	cancelled, forgetCancelled, forgetOwners                                                                                                                          string
	anyReady, hasGroups, oldMarked, oldMarks                                                                                                                          string
	// sql/command.sql
	inState, retry, schedule, moveBack, pause, resume, waiting, cancel, wasCancelled, noteCancelled string
	// sql/inspect.sql
	queuesReady, queuesScheduled, queuesClaimed, queuesFinished, queuesPaused, countReady, countScheduled, countClaimed        string
	countDone, countDead, oldestReady, oldestClaimed, place, peekSamePriority, peekReady, peekScheduled, peekClaimed, peekDone string
	queuesBlocked, countBlocked, peekBlockedSame, peekBlockedGroup, peekBlocked                                                string
	newestDone, peekDead, newestDead, size, view, failures, held                                                               string
	// sql/history.sql
	addHour, forgetHours, hours string

	all []string
}

// render returns the statements. Parameters are named in the order in which the callers pass their values.
var render = sync.OnceValue(func() *statements {
	t := sqltext.Read(sqlFiles, "?", nil)
	s := &statements{
		sequence:        t.Get("sequence", ""),
		setSequence:     t.Get("set_sequence", "seq"),
		lastNumber:      t.Get("last_number", ""),
		restoreSequence: t.Get("restore_sequence", ""),
		mark:            t.Get("mark", "handle number at"),
		marked:          t.Get("marked", "handle"),
		sidecarAlive:    t.Get("sidecar_alive", "sidecar"),

		insert:    t.Get("insert", "id queue state priority position max_attempts timeout_ms run_at enqueued_at ready_at key group_name group_noticed start_before on_expiry retention_dead_ms retain_ms key_state headers payload"),
		findKey:   t.Get("find_key", "queue key"),
		putKey:    t.Get("put_key", "queue key job expires_at"),
		endKey:    t.Get("end_key", "state queue key job"),
		stateOf:   t.Get("state_of", "id"),
		ackPlain:  t.Get("ack_plain", "id token_sidecar token_number"),
		claimed:   t.Get("claimed", "id"),
		leave:     t.Get("leave", "state position ready_at run_at attempts losses prefetch_losses last_error finished_at prune_at result id"),
		remove:    t.Get("remove", "id"),
		fail:      t.Get("fail", "attempt cause message at job"),
		renew:     t.Get("renew", "lease_ms due_at id"),
		bind:      t.Get("bind", "owner worker id"),
		disown:    t.Get("disown", "id"),
		deliver:   t.Get("deliver", "now ago_ms worker id token_sidecar token_number"),
		setWorker: t.Get("set_worker", "worker id"),
		record:    t.Get("record", "deadline due_at id"),

		closed:       t.Get("closed", "queue"),
		paused:       t.Get("paused", "queue"),
		nextPriority: t.Get("next_priority", "queue below"),
		readyFIFO:    t.Get("ready_fifo", "max_payload queue limit"),
		readyLIFO:    t.Get("ready_lifo", "max_payload queue priority limit"),
		take:         t.Get("take", "attempts prefetched fence claim_max backoff_ms backoff_max_ms retention_done_ms retention_dead_ms token_sidecar token_number owner lease_ms deadline due_at claimed_at worker id"),
		bury:         t.Get("bury", "attempts fence claim_max retention_dead_ms finished_at prune_at last_error id"),
		expiring:     t.Get("expiring", "id"),
		expire:       t.Get("expire", "fence retention_dead_ms finished_at prune_at last_error id"),

		join:      t.Get("join", "name expires_at timeout_ms stats_leader version leases sidecar"),
		heartbeat: t.Get("heartbeat", "name expires_at timeout_ms stats_leader version leases sidecar"),
		farewell:  t.Get("farewell", "name expires_at timeout_ms stats_leader version leases sidecar"),
		peers:     t.Get("peers", "now sidecar"),

		scheduled:       t.Get("scheduled", "limit"),
		never:           t.Get("never", ""),
		promote:         t.Get("promote", "position ready_at id"),
		unstarted:       t.Get("unstarted", "limit"),
		due:             t.Get("due", "limit"),
		hasGroups:       t.Get("has_groups", ""),
		nextOwner:       t.Get("next_owner", "from"),
		owned:           t.Get("owned", "owner limit"),
		lives:           t.Get("lives", "sidecar"),
		markSilent:      t.Get("mark_silent", "sidecar heartbeats now max_expiry"),
		deadSidecars:    t.Get("dead_sidecars", ""),
		anyDead:         t.Get("any_dead", ""),
		firesAt:         t.Get("fires_at", "schedules limit"),
		batchesDue:      t.Get("batches_due", "now"),
		forget:          t.Get("forget", "sidecar"),
		cancelled:       t.Get("cancelled", "owner"),
		forgetCancelled: t.Get("forget_cancelled", "owner token_sidecar token_number"),
		forgetOwners:    t.Get("forget_owners", ""),
		expired:         t.Get("expired", "now limit"),
		expiredKeys:     t.Get("expired_keys", "now limit"),
		dropKey:         t.Get("drop_key", "queue key"),
		anyReady:        t.Get("any_ready", "queue"),
		oldMarked:       t.Get("old_marked", "before"),
		oldMarks:        t.Get("old_marks", "before"),

		inState:  t.Get("in_state", "id"),
		retry:    t.Get("retry", "position ready_at id"),
		schedule: t.Get("schedule", "priority run_at id"),
		moveBack: t.Get("move_back", "priority position ready_at id"),
		pause:    t.Get("pause", "queue"),
		resume:   t.Get("resume", "queue"),

		waiting:       t.Get("waiting", "id"),
		cancel:        t.Get("cancel", "fence retention_dead_ms finished_at prune_at last_error id"),
		wasCancelled:  t.Get("was_cancelled", "id"),
		noteCancelled: t.Get("note_cancelled", "owner token_sidecar token_number"),

		queuesReady:      t.Get("queues_ready", "after limit"),
		queuesBlocked:    t.Get("queues_blocked", "after limit"),
		countBlocked:     t.Get("count_blocked", "queue limit"),
		peekBlockedSame:  t.Get("peek_blocked_same", "queue group priority after limit"),
		peekBlockedGroup: t.Get("peek_blocked_group", "queue group below limit"),
		peekBlocked:      t.Get("peek_blocked", "queue group limit"),
		queuesScheduled:  t.Get("queues_scheduled", "after limit"),
		queuesClaimed:    t.Get("queues_claimed", "after limit"),
		queuesFinished:   t.Get("queues_finished", "after_queue after_state limit"),
		queuesPaused:     t.Get("queues_paused", ""),
		countReady:       t.Get("count_ready", "queue limit"),
		countScheduled:   t.Get("count_scheduled", "queue limit"),
		countClaimed:     t.Get("count_claimed", "queue limit"),
		countDone:        t.Get("count_done", "queue limit"),
		countDead:        t.Get("count_dead", "queue limit"),
		oldestReady:      t.Get("oldest_ready", "queue priority"),
		oldestClaimed:    t.Get("oldest_claimed", "queue"),
		place:            t.Get("place", "id queue"),
		peekSamePriority: t.Get("peek_same_priority", "queue priority after limit"),
		peekReady:        t.Get("peek_ready", "queue below limit"),
		peekScheduled:    t.Get("peek_scheduled", "queue after_at after_id limit"),
		peekClaimed:      t.Get("peek_claimed", "queue after_at after_id limit"),
		peekDone:         t.Get("peek_done", "queue after_at after_id limit"),
		newestDone:       t.Get("newest_done", "queue before_at before_id limit"),
		peekDead:         t.Get("peek_dead", "queue after_at after_id limit"),
		newestDead:       t.Get("newest_dead", "queue before_at before_id limit"),
		size:             t.Get("size", "id queue"),
		view:             t.Get("view", "id"),
		failures:         t.Get("failures", "job"),
		held:             t.Get("held", "owner after limit"),

		enterClaimed: t.Get("enter_claimed", "queue settled"),
		leaveCapped:  t.Get("leave_capped", "queue"),
		readGate:     t.Get("read_gate", "queue"),
		moveGate:     t.Get("move_gate", "queue next_at"),
		enterCapped:  t.Get("enter_capped", "queue job"),
		setLimits:    t.Get("set_limits", "queue max_claimed rate rate_ms burst group_limit group_skips group_ready limits_at"),
		allLimits:    t.Get("all_limits", ""),

		noteGroup:    t.Get("note_group", "queue group"),
		leaveGroup:   t.Get("leave_group", "id"),
		takeNote:     t.Get("take_note", "queue group"),
		takeArrived:  t.Get("take_arrived", "queue group limit"),
		slots:        t.Get("slots", "queue group"),
		delayed:      t.Get("delayed", "queue group limit most"),
		admitted:     t.Get("admitted", "queue group limit"),
		blocked:      t.Get("blocked", "queue group limit"),
		admit:        t.Get("admit", "position id"),
		block:        t.Get("block", "noticed id"),
		groupSlots:   t.Get("group_slots", "queue group limit"),
		nextNoted:    t.Get("next_noted", "queue group"),
		nextArrived:  t.Get("next_arrived", "queue group"),
		nextBlocked:  t.Get("next_blocked", "queue group"),
		nextAdmitted: t.Get("next_admitted", "queue group"),

		addHour:     t.Get("add_hour", "hour queue ready enqueued acked failed run_1ms run_5ms run_25ms run_100ms run_250ms run_500ms run_1s run_2500ms run_5s run_10s run_30s run_1m run_5m run_30m run_1h run_more"),
		forgetHours: t.Get("forget_hours", "before"),
		hours:       t.Get("hours", "queue"),
	}
	s.all = t.Done()
	return s
})
