package mysql

import (
	"embed"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/sqltext"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/claim"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// sqlFiles hold the statements: see package sqltext.
//
//go:embed sql/*.sql
var sqlFiles embed.FS

// statements are the statements of sqlFiles. A list of ids, several rows, and a range of the index are values of
// parameters (session.IDs, session.Part).
//
// Each statement follows a rule: its cost must follow from its text, whatever statistics the server has
// about the tables. A statement reaches qsidecar_jobs by id = or id IN (…). Otherwise it names the index,
// one `segment`, the order of the index and a LIMIT. It never joins qsidecar_jobs.
type statements struct {
	clock string // the SQL expression for the present time

	// sql/tx.sql
	begin, commit, rollback, mark, markIf, marked, committed, seal, sidecarAlive, readClock, releaseGalera, afterCommit, endGalera string
	// sql/heartbeat.sql
	join, renew, leave, lastWatcher, peers string
	// sql/write.sql
	insert, insertRow, insertDelayedRow, insertMore, endRow, endMore, insertExpiring, expiringRow, expireLater, inserted, ack, rowCount, lock, lockFree, findClaimed, lockOne, deleteDone, endClaims, endClaimsRequeued string
	renewClaims, insertFailures, deleteFailures, insertPrunable, register, countReturn, readRequeues                                                                                                                    string
	// sql/keys.sql
	oneKey, oneKeyOfJob, insertMissingKeys, missingKey, lockKeys, statesOfKeys, lockExistingKeys, lockFreeKeys, findKeys, takeKeys, takenKey, endKeys string
	takeKeyBack                                                                                                                                       string
	// sql/command.sql
	pause, resume, anyInSegment, following, retry, changeReady, changeScheduled, changeScheduledAt string
	cancelledJobs, cancelWaiting, noteCancelled                                                    string
	// sql/inspect.sql
	queuesPaused, queuesClaimed, queuesReady, queuesBlocked, queuesOthers, countClaimed, countBlocked, countSegment, stats, oldestReady, peek, peekNewest, peekClaimed string
	placeReady, placeBlocked, placeScheduled, placeClaimed, placeFinished, blocked, chosen, keyHolder, view, failures, claimedBy                                       string
	// sql/maintain.sql
	dueNow, dueArrived, dueGroups, dueSidecars, dueOwner, dueSchedule, dueBatches, dueNever, dueExpired, dueKeys, dueReady, dueRequeues, dueScheduledOf, dueClaimedOf, dueScheduled string
	dueScheduledAmong, dueClaimed                                                                                                                                                   string
	markDead, findDue, findArrived, prunable, prunableKeys, lives, owned, forget, queuesOf, scheduleArrived, promote, existing, deletePrunable                                      string
	dueCancelled, cancelled, forgetCancelled, lostOwners, forgetOwner                                                                                                               string
	pruneKeys, dueExpiring, expiring, deleteExpiring                                                                                                                                string
	// sql/cleanup.sql
	failuresAfter, admittedAfter, described, describe, scheduledAfter, keysAfter, endKey, oldCommits, deleteOldCommits, registeredAfter, unregister string
	unreadableHeaders, replaceHeaders                                                                                                               string
	// sql/groups.sql
	noteGroup, noteAll, leaveGroups, skipped, waitAgain, lockStripe, freeStripes, oneStripe, oneGroup, notesOf, groupLimits, admittedOf, admittedRows, groupSlots, firstBlocked string
	deleteNotes, leaveAdmitted, enterAdmitted, notice, admit, admitLast, findNotes, findBlocked, findAdmitted                                                                   string
	// sql/history.sql
	addHour, forgetHours, hours string
	// sql/sequence.sql
	lockGate, readGate, readCapped, claimedIn, leaveCapped, enterCapped, moveGate, lockLimits, readLimits, setLimits, allLimits string
	highestNamed, highestID, nextID, storeID, deleteID                                                                          string

	claims claim.SQL // sql/claim.sql
}

// render returns the statements. Parameters are named in the order in which the callers pass their values, once for each use.
func render(clock string, v session.Server) *statements {
	with := map[string]string{
		"now": clock, "position": migrate.Position, "skip_locked": "", "if_free": "NOWAIT", "step": "@@auto_increment_increment", "max_attempts": ":max_attempts",
		"in_time": strconv.FormatFloat(backends.InTime, 'g', -1, 64), "other_watchers": strconv.Itoa(backends.Watchers - 1),
		"counter_days": strconv.Itoa(counterDays),
	}
	if v.SkipLocked {
		with["skip_locked"], with["if_free"] = "SKIP LOCKED", "SKIP LOCKED"
	}
	if v.Galera {
		with["step"], with["max_attempts"] = "@qsidecar_step", "IF(@qsidecar_step := @@auto_increment_increment, :max_attempts, 0)"
	}
	t := sqltext.Read(sqlFiles, "", with)
	const (
		heartbeat = "name timeout_us timeout_ms stats_leader version leases"
		endClaims = "state attempts losses prefetch_losses run_at failed message finished_at prune_at result"
		oldest    = "segment segment where limit"
		segments  = "after before limit"
		firstDue  = "name segment segment from"
	)
	s := &statements{
		clock: clock,

		begin:         t.Get("begin", ""),
		commit:        t.Get("commit", ""),
		rollback:      t.Get("rollback", ""),
		mark:          t.Get("mark", "handle number"),
		markIf:        t.Get("mark_if", "handle acked number"),
		marked:        t.Get("marked", "handle"),
		committed:     t.Get("committed", "handle"),
		seal:          t.Get("seal", "handle number before"),
		sidecarAlive:  t.Get("sidecar_alive", "sidecar"),
		readClock:     t.Get("clock", ""),
		releaseGalera: t.Get("release_galera", ""),
		afterCommit:   t.Get("after_commit", ""),
		endGalera:     t.Get("end_galera", ""),

		join:        t.Get("join", "sidecar "+heartbeat),
		renew:       t.Get("renew", heartbeat+" sidecar"),
		leave:       t.Get("leave", heartbeat+" sidecar"),
		lastWatcher: t.Get("last_watcher", "sidecar"),
		peers:       t.Get("peers", "all_peers sidecar"),

		insert:            t.Get("insert", ""),
		insertRow:         t.Get("insert_row", "queue state priority max_attempts timeout_ms run_at now now key headers payload"),
		insertDelayedRow:  t.Get("insert_delayed_row", "queue state priority max_attempts timeout_ms now delay_us now now key headers payload"),
		insertMore:        t.Get("insert_more", ""),
		endRow:            t.Get("end_row", ""),
		endMore:           t.Get("end_more", "group start_before on_expiry retention_dead retain key_state"),
		insertExpiring:    t.Get("insert_expiring", "rows"),
		expiringRow:       t.Get("expiring_row", "start_before index"),
		expireLater:       t.Get("expire_later", "start_before job"),
		inserted:          t.Get("inserted", ""),
		ack:               t.Get("ack", "ids numbers sidecars"),
		rowCount:          t.Get("row_count", ""),
		lock:              t.Get("lock", "ids"),
		lockFree:          t.Get("lock_free", "ids"),
		findClaimed:       t.Get("find_claimed", "ids"),
		lockOne:           t.Get("lock_one", "id"),
		deleteDone:        t.Get("delete_done", "ids"),
		endClaims:         t.Get("end_claims", endClaims+" ids"),
		endClaimsRequeued: t.Get("end_claims_requeued", endClaims+" now ids"),
		renewClaims:       t.Get("renew_claims", "attempts prefetch_losses prefetched owner lease_ms deadline due_at set_worker worker ids"),
		insertFailures:    t.Get("insert_failures", "job fence attempt cause message now"),
		deleteFailures:    t.Get("delete_failures", "jobs"),
		insertPrunable:    t.Get("insert_prunable", "prune_at job"),
		register:          t.Get("register", "queue"),
		countReturn:       t.Get("count_return", "queue"),
		readRequeues:      t.Get("read_requeues", "queues"),

		oneKey:            t.Get("one_key", "queue key"),
		oneKeyOfJob:       t.Get("one_key_of_job", "queue key job"),
		insertMissingKeys: t.Get("insert_missing_keys", "rows"),
		missingKey:        t.Get("missing_key", "queue key"),
		lockKeys:          t.Get("lock_keys", "keys"),
		statesOfKeys:      t.Get("states_of_keys", "keys"),
		lockExistingKeys:  t.Get("lock_existing_keys", "keys"),
		lockFreeKeys:      t.Get("lock_free_keys", "keys"),
		findKeys:          t.Get("find_keys", "keys"),
		takeKeys:          t.Get("take_keys", "rows"),
		takenKey:          t.Get("taken_key", "queue key index now ttl_us"),
		endKeys:           t.Get("end_keys", "states keys"),
		takeKeyBack:       t.Get("take_key_back", "id now id queue key"),

		pause:             t.Get("pause", "queue"),
		resume:            t.Get("resume", "queue"),
		anyInSegment:      t.Get("any_in_segment", "segment"),
		following:         t.Get("following", "segment following limit"),
		retry:             t.Get("retry", "now ranks ids"),
		changeReady:       t.Get("change_ready", "now ranks priority ids"),
		changeScheduled:   t.Get("change_scheduled", "priority ids"),
		changeScheduledAt: t.Get("change_scheduled_at", "run_at priority ids"),

		cancelledJobs: t.Get("cancelled_jobs", "jobs"),
		cancelWaiting: t.Get("cancel_waiting", "fences retention_dead ids"),
		noteCancelled: t.Get("note_cancelled", "owner token_sidecar token_number"),

		queuesPaused:   t.Get("queues_paused", ""),
		queuesClaimed:  t.Get("queues_claimed", ""),
		queuesReady:    t.Get("queues_ready", segments),
		queuesOthers:   t.Get("queues_others", segments),
		countClaimed:   t.Get("count_claimed", "queue limit"),
		countSegment:   t.Get("count_segment", "segment limit"),
		oldestReady:    t.Get("oldest_ready", "segment after"),
		queuesBlocked:  t.Get("queues_blocked", segments),
		countBlocked:   t.Get("count_blocked", "blocked limit"),
		placeBlocked:   t.Get("place_blocked", "id queue"),
		blocked:        t.Get("blocked", "unnoticed limit noticed limit limit"),
		stats:          t.Get("stats", "ready limit scheduled limit queue limit done limit dead limit queue queue blocked limit"),
		peek:           t.Get("peek", "segment following limit"),
		peekNewest:     t.Get("peek_newest", "segment preceding limit"),
		peekClaimed:    t.Get("peek_claimed", "queue after_at after_at after_id limit"),
		placeReady:     t.Get("place_ready", "id queue"),
		placeScheduled: t.Get("place_scheduled", "id queue"),
		placeClaimed:   t.Get("place_claimed", "id queue"),
		placeFinished:  t.Get("place_finished", "id queue"),
		chosen:         t.Get("chosen", "ids queue"),
		view:           t.Get("view", "ids queue"),
		failures:       t.Get("failures", "ids"),
		keyHolder:      t.Get("key_holder", "queue key"),
		claimedBy:      t.Get("claimed_by", "segment after limit"),

		dueNow:            t.Get("due_now", ""),
		dueArrived:        t.Get("due_arrived", ""),
		dueGroups:         t.Get("due_groups", ""),
		dueSidecars:       t.Get("due_sidecars", ""),
		dueOwner:          t.Get("due_owner", "gaps"),
		dueSchedule:       t.Get("due_schedule", "schedules"),
		dueBatches:        t.Get("due_batches", ""),
		dueNever:          t.Get("due_never", ""),
		dueExpired:        t.Get("due_expired", "from"),
		dueKeys:           t.Get("due_keys", "from"),
		dueReady:          t.Get("due_ready", "queue segment segment where"),
		dueRequeues:       t.Get("due_requeues", "queues"),
		dueScheduledOf:    t.Get("due_scheduled_of", firstDue),
		dueClaimedOf:      t.Get("due_claimed_of", firstDue),
		dueScheduled:      t.Get("due_scheduled", "from"),
		dueScheduledAmong: t.Get("due_scheduled_among", "from queues"),
		dueClaimed:        t.Get("due_claimed", "from"),
		markDead:          t.Get("mark_dead", "sidecar heartbeats timeout_us"),
		findDue:           t.Get("find_due", "segment from limit"),
		findArrived:       t.Get("find_arrived", "limit"),
		prunable:          t.Get("prunable", "from limit"),
		prunableKeys:      t.Get("prunable_keys", "from limit"),
		lives:             t.Get("lives", "sidecar"),
		owned:             t.Get("owned", "segment limit"),
		forget:            t.Get("forget", "sidecar"),
		dueCancelled:      t.Get("due_cancelled", "owner"),
		cancelled:         t.Get("cancelled", "owner"),
		forgetCancelled:   t.Get("forget_cancelled", "owner token_sidecar token_number"),
		lostOwners:        t.Get("lost_owners", ""),
		forgetOwner:       t.Get("forget_owner", "owner"),
		queuesOf:          t.Get("queues_of", "ids"),
		scheduleArrived:   t.Get("schedule_arrived", "ids"),
		promote:           t.Get("promote", "now ranks ids"),
		existing:          t.Get("existing", "ids"),
		deletePrunable:    t.Get("delete_prunable", "first last jobs"),
		dueExpiring:       t.Get("due_expiring", "from"),
		expiring:          t.Get("expiring", "from limit"),
		deleteExpiring:    t.Get("delete_expiring", "first last jobs"),
		pruneKeys:         t.Get("prune_keys", "queue now keys"),

		failuresAfter:     t.Get("failures_after", "job limit"),
		admittedAfter:     t.Get("admitted_after", "queue queue group group job limit"),
		described:         t.Get("described", ""),
		describe:          t.Get("describe", "version min_program database"),
		scheduledAfter:    t.Get("scheduled_after", "segment"),
		keysAfter:         t.Get("keys_after", "queue queue key limit"),
		endKey:            t.Get("end_key", "state queue key job"),
		oldCommits:        t.Get("old_commits", "limit"),
		deleteOldCommits:  t.Get("delete_old_commits", "limit"),
		registeredAfter:   t.Get("registered_after", "after limit"),
		unregister:        t.Get("unregister", "queue requeues"),
		unreadableHeaders: t.Get("unreadable_headers", ""),
		replaceHeaders:    t.Get("replace_headers", "ids"),

		noteGroup:     t.Get("note_group", "queue group"),
		noteAll:       t.Get("note_all", "queue first blocked queue"),
		leaveGroups:   t.Get("leave_groups", "ids"),
		skipped:       t.Get("skipped", "ids"),
		waitAgain:     t.Get("wait_again", "noticed ids"),
		lockStripe:    t.Get("lock_stripe", "queue stripe"),
		freeStripes:   t.Get("free_stripes", "stripes"),
		oneStripe:     t.Get("one_stripe", "queue stripe"),
		oneGroup:      t.Get("one_group", "queue group"),
		notesOf:       t.Get("notes_of", "groups limit"),
		groupLimits:   t.Get("group_limits", "queues"),
		admittedOf:    t.Get("admitted_of", "groups"),
		admittedRows:  t.Get("admitted_rows", "ids"),
		groupSlots:    t.Get("group_slots", "queue group limit"),
		firstBlocked:  t.Get("first_blocked", "number segment limit"),
		deleteNotes:   t.Get("delete_notes", "notes"),
		leaveAdmitted: t.Get("leave_admitted", "queue group jobs"),
		enterAdmitted: t.Get("enter_admitted", "queue group job"),
		notice:        t.Get("notice", "ids"),
		admit:         t.Get("admit", "ids"),
		findNotes:     t.Get("find_notes", "queue queue group limit"),
		admitLast:     t.Get("admit_last", "ranks ids"),
		findBlocked:   t.Get("find_blocked", "after before limit"),
		findAdmitted:  t.Get("find_admitted", "queue queue group limit"),

		addHour:     t.Get("add_hour", "hour queue ready enqueued acked failed run_1ms run_5ms run_25ms run_100ms run_250ms run_500ms run_1s run_2500ms run_5s run_10s run_30s run_1m run_5m run_30m run_1h run_more"),
		forgetHours: t.Get("forget_hours", "before"),
		hours:       t.Get("hours", "queue queue"),

		lockGate:    t.Get("lock_gate", "queue"),
		readGate:    t.Get("read_gate", "settles_ms queue"),
		readCapped:  t.Get("read_capped", "queue"),
		claimedIn:   t.Get("claimed_in", "queue"),
		leaveCapped: t.Get("leave_capped", "queue jobs"),
		enterCapped: t.Get("enter_capped", "queue job"),
		moveGate:    t.Get("move_gate", "next advance queue"),
		lockLimits:  t.Get("lock_limits", "queue"),
		readLimits:  t.Get("read_limits", "queue"),
		setLimits:   t.Get("set_limits", "max_claimed rate rate_ms burst group_limit group_skips group_ready queue"),
		allLimits:   t.Get("all_limits", ""),

		highestNamed: t.Get("highest_named", "limit"),
		highestID:    t.Get("highest_id", ""),
		nextID:       t.Get("next_id", ""),
		storeID:      t.Get("store_id", "id"),
		deleteID:     t.Get("delete_id", "id"),

		claims: claim.SQL{
			Claim: t.Get("claim", "small "+oldest), ClaimUnlocked: t.Get("claim_unlocked", oldest),
			ClaimLIFO: t.Get("claim_lifo", "small segment where limit"), ClaimLIFOUnlocked: t.Get("claim_lifo_unlocked", "segment where limit"),
			NextUrgency: t.Get("next_urgency", "segment below"), Urgency: t.Get("urgency", ""),
			LockReady: t.Get("lock_ready", "small ids"), LockQueue: t.Get("lock_queue", "queue"),
			Status: t.Get("claim_status", "sidecar queues"),
			Take: t.Get("take", "owner now now_us counted uncounted claim_max backoff backoff_max retention_done retention_dead lease deadline due_at "+
				"token_sidecar numbers workers ids"),
			Payloads: t.Get("payloads", "ids"), Bury: t.Get("bury", "attempts fence claim_max retention_dead now prune_at message id"),
			Expire:   t.Get("expire", "fence retention_dead now prune_at message id"),
			Position: t.Get("position", ""), Probe: t.Get("probe", "segment segment where"),
		},
	}
	s.claims.InsertFailures, s.claims.InsertPrunable, s.claims.NoteGroup = s.insertFailures, s.insertPrunable, s.noteGroup
	s.claims.DeleteDone, s.claims.DeleteFailures = s.deleteDone, s.deleteFailures
	beginGalera := t.Get("begin_galera", "")
	t.Done()
	if v.Galera {
		s.begin, s.rollback = beginGalera, s.rollback+";\n"+s.endGalera
	}
	return s
}
