package protocol

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var compareIDs = cmp.AllowUnexported(RequestID{})

// The generators produce any valid message, including values at the limits.

func genText(limit int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		s := rapid.OneOf(rapid.String(), rapid.StringN(0, min(200, limit), limit)).Draw(t, "text")
		return cut(strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "?"), limit)
	})
}

func genSome(limit int) *rapid.Generator[string] {
	return rapid.Map(genText(limit-1), func(s string) string { return "x" + s })
}

func genQueue() *rapid.Generator[string] {
	return rapid.StringMatching(`[A-Za-z0-9_:/][A-Za-z0-9._:/-]{0,127}`)
}

// genInstant draws an instant that isn't probably in seconds.
func genInstant() *rapid.Generator[int64] {
	return genInt(0, MaxRunAt).Filter(func(v int64) bool { return !isSeconds(v) })
}

func genInt(lo, hi int64) *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(lo, hi), rapid.SampledFrom([]int64{lo, hi}))
}

func genOpt[T any](g *rapid.Generator[T]) *rapid.Generator[Opt[T]] {
	return rapid.Custom(func(t *rapid.T) Opt[T] {
		if rapid.Bool().Draw(t, "set") {
			return Some(g.Draw(t, "value"))
		}
		return Opt[T]{}
	})
}

func genID() *rapid.Generator[RequestID] {
	return rapid.Custom(func(t *rapid.T) RequestID {
		switch rapid.IntRange(0, 2).Draw(t, "id kind") {
		case 0:
			return NumberID(uint64(genInt(0, MaxSafeInt).Draw(t, "number")))
		case 1:
			return TextID(genText(MaxRequestID).Draw(t, "text id"))
		}
		return RequestID{}
	})
}

func genBytes() *rapid.Generator[[]byte] {
	return rapid.Map(rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) })),
		func(b []byte) []byte { return append([]byte{}, b...) })
}

func genHeaders() *rapid.Generator[map[string]string] {
	return rapid.Map(rapid.MapOfN(genText(30), genText(60), 0, MaxHeaders), func(h map[string]string) map[string]string {
		if len(h) == 0 {
			return nil
		}
		return h
	})
}

func genNewJob() *rapid.Generator[NewJob] {
	return rapid.Custom(func(t *rapid.T) NewJob {
		j := NewJob{
			Queue:       genQueue().Draw(t, "queue"),
			Priority:    genInt(MinPriority, MaxPriority).Draw(t, "priority"),
			Headers:     genHeaders().Draw(t, "headers"),
			MaxAttempts: genOpt(genInt(1, MaxMaxAttempt)).Draw(t, "max_attempts"),
			TimeoutMS:   genOpt(genInt(1, MaxTimeoutMS)).Draw(t, "timeout_ms"),
		}
		if b := genBytes().Draw(t, "payload"); len(b) > 0 {
			j.Payload = b
		}
		if rapid.Bool().Draw(t, "has key") {
			if rapid.Bool().Draw(t, "start_before or start_within_ms") {
				j.StartBefore = genOpt(genInstant()).Draw(t, "start_before")
			} else {
				j.StartWithinMS = genOpt(genInt(1, MaxDelayMS)).Draw(t, "start_within_ms")
			}
			j.RetainMS = genOpt(genInt(1, MaxDelayMS)).Draw(t, "retain_ms")
			j.OnExpiry = rapid.SampledFrom([]string{"", ExpireDead, ExpireDelete}).Draw(t, "on_expiry")
			j.Key, j.Group, j.Batch = genSome(MaxKey).Draw(t, "key"), genSome(MaxGroup).Draw(t, "group"), genSome(MaxBatchID).Draw(t, "batch")
		}
		if rapid.Bool().Draw(t, "delay") {
			j.DelayMS = genOpt(genInt(0, MaxDelayMS)).Draw(t, "delay_ms")
		} else {
			j.RunAt = genOpt(genInstant()).Draw(t, "run_at")
		}
		if j.Key != "" {
			j.KeyUntil = rapid.SampledFrom([]string{"", KeyUntilStart, KeyUntilFinish}).Draw(t, "key_until")
			j.OnConflict = rapid.SampledFrom([]string{"", ConflictKeep, ConflictReplace, ConflictDebounce}).Draw(t, "on_conflict")
		}
		switch j.OnConflict {
		case ConflictDebounce:
			j.DelayMS, j.RunAt = Some(genInt(1, MaxDelayMS).Draw(t, "delay")), Opt[int64]{}
			j.DebounceMaxMS = genOpt(genInt(j.DelayMS.Value, MaxDelayMS)).Draw(t, "debounce_max_ms")
			fallthrough
		case ConflictReplace:
			j.Batch = ""
		}
		return j
	})
}

func genLeases(t *rapid.T, r *Request) {
	if rapid.Bool().Draw(t, "one") {
		r.Lease = genText(MaxLease).Draw(t, "lease")
	} else {
		r.Leases = rapid.SliceOfNDistinct(genText(MaxLease), 1, 20, rapid.ID[string]).Draw(t, "leases")
	}
}

var genOp = rapid.SampledFrom([]Op{OpHello, OpEnqueue, OpClaim, OpAck, OpNack, OpExtend, OpCancelClaim, OpBye, OpStats,
	OpPeek, OpRetry, OpChange, OpDelete, OpReclaim, OpPurge, OpPause, OpResume, OpLimit, OpSchedules, OpSchedule, OpChangeSchedule, OpOpenBatch, OpCloseBatch, OpCancelBatch, OpBatches, OpWait, OpProgress, OpPing, OpReload, OpStatus, OpConfig, OpFleet, OpHistory, OpCheck})

func genRequest(t *rapid.T) Request {
	r := Request{ID: genID().Draw(t, "id"), Op: genOp.Draw(t, "op")}
	switch r.Op {
	case OpHello:
		r.Version = genOpt(genInt(1, MaxSafeInt)).Draw(t, "version")
		r.Worker = genText(MaxWorkerName).Draw(t, "worker")
		r.Events = rapid.SampledFrom([][]string{nil, {}, {"lost"}, {"lost", "draining"}}).Draw(t, "events")
	case OpEnqueue:
		if rapid.Bool().Draw(t, "list") {
			r.Jobs = rapid.SliceOfN(genNewJob(), 1, 5).Draw(t, "jobs")
		} else {
			r.Job = genNewJob().Draw(t, "job")
			r.Queue = r.Job.Queue
		}
	case OpClaim:
		if rapid.Bool().Draw(t, "queues") {
			r.Queues = rapid.SliceOfN(genQueue(), 1, 5).Draw(t, "queues")
		} else {
			r.Queue = genQueue().Draw(t, "queue")
		}
		r.Max = genOpt(genInt(1, MaxList)).Draw(t, "max")
		r.WaitMS = genInt(0, MaxWaitMS).Draw(t, "wait_ms")
		r.LeaseMS = genOpt(genInt(MinLeaseMS, MaxLeaseMS)).Draw(t, "lease_ms")
		r.Order = rapid.SampledFrom([]Order{"", OrderStrict, OrderRotate}).Draw(t, "order")
		if r.Order == OrderRotate && rapid.Bool().Draw(t, "weighted") {
			r.Weights = map[string]int64{}
			for _, q := range append(r.Queues, r.Queue) {
				if q != "" && rapid.Bool().Draw(t, "has a weight") {
					r.Weights[q] = genInt(1, MaxWeight).Draw(t, "weight")
				}
			}
		}
	case OpAck:
		if genLeases(t, &r); r.Leases == nil && rapid.Bool().Draw(t, "more") {
			r.Result = genBytes().Draw(t, "result")
			r.Enqueue = rapid.SliceOfN(genNewJob(), 1, 3).Draw(t, "enqueue")
		}
	case OpNack:
		genLeases(t, &r)
		r.Error = genText(MaxErrorText).Draw(t, "error")
		r.DelayMS = genOpt(genInt(0, MaxDelayMS)).Draw(t, "delay_ms")
		r.Dead = rapid.Bool().Draw(t, "dead")
		r.Snooze = rapid.Bool().Draw(t, "snooze")
	case OpExtend:
		genLeases(t, &r)
		if r.Bind = rapid.Bool().Draw(t, "bind"); !r.Bind {
			r.LeaseMS = genOpt(genInt(MinLeaseMS, MaxLeaseMS)).Draw(t, "lease_ms")
		}
	case OpProgress:
		r.Lease, r.Done, r.Total = genText(MaxLease).Draw(t, "lease"), genOpt(genInt(0, MaxSafeInt)).Draw(t, "done"), Some(genInt(0, MaxSafeInt).Draw(t, "total"))
		if rapid.Bool().Draw(t, "has data") {
			r.Data = genBytes().Draw(t, "data")
		}
	case OpCancelClaim:
		r.Cancel = genID().Draw(t, "request")
	default:
		genOperator(t, &r)
	}
	return r
}

// genOperator draws the ops about a queue.
func genOperator(t *rapid.T, r *Request) {
	ids := rapid.SliceOfN(genSome(MaxJobID), 1, 10)
	switch r.Op {
	case OpWatch:
		r.Queue, r.WaitMS = genQueue().Draw(t, "queue"), genInt(0, MaxWaitMS).Draw(t, "wait_ms")
	case OpWait:
		r.Queue, r.WaitMS = genQueue().Draw(t, "queue"), genInt(0, MaxWaitMS).Draw(t, "wait_ms")
		if rapid.Bool().Draw(t, "of a batch") {
			r.Batch = genSome(MaxBatchID).Draw(t, "batch")
			return
		}
		r.IDs, r.Mode = ids.Draw(t, "ids"), rapid.SampledFrom([]string{"", WaitAll, WaitAny}).Draw(t, "mode")
	case OpStats, OpPause, OpResume:
		r.Queue = genQueue().Draw(t, "queue")
	case OpLimit:
		r.Queue, r.None = genQueue().Draw(t, "queue"), rapid.Bool().Draw(t, "none")
		r.MaxClaimed, r.Burst = genOpt(genInt(0, MaxMaxClaimed)).Draw(t, "max_claimed"), genOpt(genInt(0, MaxBurst)).Draw(t, "burst")
		r.GroupLimit = genOpt(genInt(0, MaxGroupLimit)).Draw(t, "group_limit")
		r.GroupReady = genOpt(genInt(0, MaxGroupLimit)).Draw(t, "group_ready")
		if !r.None && !r.MaxClaimed.Set && !r.Burst.Set {
			r.Rate = "100/s"
		}
	case OpSchedules:
		r.Queue, r.Max = genQueue().Draw(t, "queue"), genOpt(genInt(1, MaxList)).Draw(t, "max")
		if rapid.Bool().Draw(t, "go on") {
			r.After = genQueue().Draw(t, "after")
		}
	case OpSchedule:
		r.Queue, r.DryRun = genQueue().Draw(t, "queue"), rapid.Bool().Draw(t, "dry_run")
		r.Schedule = &Schedule{
			Name: genQueue().Draw(t, "name"), EveryMS: genInt(1, MaxEveryMS).Draw(t, "every_ms"), SplayMS: genInt(0, MaxSplayMS).Draw(t, "splay_ms"),
			Headers: genHeaders().Draw(t, "headers"), Priority: genInt(MinPriority, MaxPriority).Draw(t, "priority"),
			Missed: rapid.SampledFrom([]string{"", "one", "all", "skip"}).Draw(t, "missed"), Overlap: rapid.SampledFrom([]string{"", "allow", "skip"}).Draw(t, "overlap"),
			Version: genInt(0, MaxSafeInt).Draw(t, "version"),
		}
		if rapid.Bool().Draw(t, "cron") {
			r.Schedule.EveryMS, r.Schedule.Cron, r.Schedule.Zone = 0, "0 6 * * *", genSome(MaxZone).Draw(t, "tz")
		}
	case OpChangeSchedule:
		r.Queue, r.Do = genQueue().Draw(t, "queue"), rapid.SampledFrom([]string{DoRun, DoPause, DoResume, DoDelete}).Draw(t, "do")
		r.Schedule = &Schedule{Name: genQueue().Draw(t, "name"), Source: genQueue().Draw(t, "source")}
	case OpOpenBatch:
		r.Job = genNewJob().Draw(t, "callback")
		r.Job.Key, r.Job.DelayMS, r.Job.RunAt = "", Opt[int64]{}, Opt[int64]{}
		r.Job.KeyUntil, r.Job.OnConflict, r.Job.DebounceMaxMS = "", "", Opt[int64]{}
		r.Job.StartBefore, r.Job.StartWithinMS, r.Job.RetainMS, r.Job.OnExpiry = Opt[int64]{}, Opt[int64]{}, Opt[int64]{}, ""
		r.Queue, r.Key, r.On = r.Job.Queue, genSome(MaxKey).Draw(t, "key"), rapid.SampledFrom([]string{OnSuccess, OnFinish}).Draw(t, "on")
	case OpCloseBatch, OpCancelBatch:
		r.Queue, r.Batch = genQueue().Draw(t, "queue"), genSome(MaxBatchID).Draw(t, "batch")
	case OpBatches:
		r.Queue, r.All = genQueue().Draw(t, "queue"), rapid.Bool().Draw(t, "all")
		if rapid.Bool().Draw(t, "one") {
			r.Batch = genSome(MaxBatchID).Draw(t, "batch")
		} else {
			r.Max, r.After = genOpt(genInt(1, MaxList)).Draw(t, "max"), genSome(MaxJobID).Draw(t, "after")
		}
	case OpPeek:
		if rapid.Bool().Draw(t, "of one queue") {
			r.Queue = genQueue().Draw(t, "queue")
		}
		if rapid.Bool().Draw(t, "by id") {
			r.IDs = ids.Draw(t, "ids")
		} else {
			r.State = rapid.SampledFrom([]State{"", StateReady, StateScheduled, StateClaimed, StateDone, StateDead}).Draw(t, "state")
			r.Max = genOpt(genInt(1, MaxList)).Draw(t, "max")
			r.Newest = (r.State == StateDone || r.State == StateDead) && rapid.Bool().Draw(t, "newest")
			if r.Queue != "" {
				r.After = genSome(MaxJobID).Draw(t, "after")
				r.Text, r.Headers = genSome(MaxSearchText).Draw(t, "text"), genHeaders().Draw(t, "headers")
				r.Error = genSome(MaxSearchText).Draw(t, "error")
				if r.State != "" {
					r.Key = genSome(MaxKey).Draw(t, "key")
				}
			}
		}
	case OpRetry:
		r.Queue = genQueue().Draw(t, "queue")
		if r.All = rapid.Bool().Draw(t, "all"); !r.All {
			r.IDs = ids.Draw(t, "ids")
		}
	case OpChange:
		r.Queue, r.IDs = genQueue().Draw(t, "queue"), ids.Draw(t, "ids")
		r.Priority = Some(genInt(MinPriority, MaxPriority).Draw(t, "priority"))
		if rapid.Bool().Draw(t, "delay") {
			r.DelayMS = genOpt(genInt(0, MaxDelayMS)).Draw(t, "delay_ms")
		} else {
			r.RunAt = genOpt(genInstant()).Draw(t, "run_at")
		}
	case OpDelete, OpReclaim:
		r.Queue, r.IDs = genQueue().Draw(t, "queue"), ids.Draw(t, "ids")
	case OpPurge:
		r.Queue = genQueue().Draw(t, "queue")
		r.State = rapid.SampledFrom([]State{StateReady, StateScheduled, StateDone, StateDead}).Draw(t, "state")
	}
}

func TestRequestRoundTrip(t *testing.T) {
	eachCodec(t, func(t *testing.T, c Codec) {
		rapid.Check(t, func(t *rapid.T) {
			want := genRequest(t)
			var got Request
			sent := body(c, c.AppendRequest(nil, &want))
			if err := c.DecodeRequest(sent, NewLimits(DefaultMaxFrame), &got); err != nil {
				t.Fatalf("%v\n%q", err, sent)
			}
			if diff := cmp.Diff(want, got, compareIDs); diff != "" {
				t.Fatalf("-sent +received:\n%s", diff)
			}
		})
	})
}

func genNumber() *rapid.Generator[int64] { return genInt(-MaxSafeInt, MaxSafeInt) }

func genList[T any](g *rapid.Generator[T], lo int) *rapid.Generator[[]T] {
	return rapid.Map(rapid.SliceOfN(g, lo, 4), func(s []T) []T { return append([]T{}, s...) })
}

func genProgress(t *rapid.T) *Progress {
	if !rapid.Bool().Draw(t, "has progress") {
		return nil
	}
	p := &Progress{Done: genOpt(genNumber()).Draw(t, "done"), Total: genOpt(genNumber()).Draw(t, "total"), At: genNumber().Draw(t, "at")}
	if rapid.Bool().Draw(t, "has data") {
		p.Data = genBytes().Draw(t, "data")
	}
	return p
}

func genJob(t *rapid.T) Job {
	return Job{
		ID: genSome(MaxJobID).Draw(t, "id"), Queue: genQueue().Draw(t, "queue"), Lease: genText(MaxLease).Draw(t, "lease"),
		Payload: genBytes().Draw(t, "payload"), Attempt: genNumber().Draw(t, "attempt"),
		MaxAttempts: genNumber().Draw(t, "max_attempts"), Fence: genNumber().Draw(t, "fence"),
		Priority: genNumber().Draw(t, "priority"), EnqueuedAt: genNumber().Draw(t, "enqueued_at"),
		TimeoutMS: genOpt(genNumber()).Draw(t, "timeout_ms"), Headers: genHeaders().Draw(t, "headers"),
		Key: genText(MaxKey).Draw(t, "key"), LastError: genText(MaxErrorText).Draw(t, "last_error"), Progress: genProgress(t),
	}
}

func genView(t *rapid.T) JobView {
	v := JobView{
		ID: genSome(MaxJobID).Draw(t, "id"), Queue: genQueue().Draw(t, "queue"), State: StateDead,
		Payload: genBytes().Draw(t, "payload"), Priority: genNumber().Draw(t, "priority"),
		Attempt: genNumber().Draw(t, "attempt"), MaxAttempts: genNumber().Draw(t, "max_attempts"),
		EnqueuedAt: genNumber().Draw(t, "enqueued_at"), RunAt: genOpt(genNumber()).Draw(t, "run_at"),
		ClaimedAt: genOpt(genNumber()).Draw(t, "claimed_at"), FinishedAt: genOpt(genNumber()).Draw(t, "finished_at"),
		Worker: genText(MaxWorkerName).Draw(t, "worker"), Key: genText(MaxKey).Draw(t, "key"),
		StartBefore: genOpt(genNumber()).Draw(t, "start_before"), Group: genText(MaxGroup).Draw(t, "group"), Headers: genHeaders().Draw(t, "headers"), LeftOut: genOpt(genNumber()).Draw(t, "left_out"),
		Errors: genList(rapid.Custom(func(t *rapid.T) Failure {
			return Failure{Attempt: genNumber().Draw(t, "attempt"), Cause: genText(20).Draw(t, "cause"),
				Message: genText(200).Draw(t, "message"), At: genNumber().Draw(t, "at")}
		}), 0).Draw(t, "errors"),
	}
	if rapid.Bool().Draw(t, "waits") {
		v.WaitsFor, v.Behind = WaitsForGroup, []Unchanged{{ID: genSome(MaxJobID).Draw(t, "behind"), State: StateClaimed}}
	}
	v.Progress = genProgress(t)
	if rapid.Bool().Draw(t, "has result") {
		v.Result = genBytes().Draw(t, "result")
	}
	return v
}

func genEnqueued(t *rapid.T) EnqueuedJob {
	return EnqueuedJob{ID: genSome(MaxJobID).Draw(t, "id"), Duplicate: rapid.Bool().Draw(t, "duplicate"),
		Outcome: rapid.SampledFrom([]Outcome{"", OutcomeReplaced, OutcomePending}).Draw(t, "outcome"),
		State:   State(genText(20).Draw(t, "state"))}
}

func genStat(t *rapid.T) QueueStat {
	n := func(s string) int64 { return genNumber().Draw(t, s) }
	return QueueStat{Queue: genQueue().Draw(t, "queue"), Ready: n("ready"), Blocked: n("blocked"), Scheduled: n("scheduled"), Claimed: n("claimed"),
		Dead: n("dead"), Done: n("done"), Paused: rapid.Bool().Draw(t, "paused"), OldestReadyMS: n("oldest_ready_ms"),
		OldestClaimedMS: n("oldest_claimed_ms"), Approx: rapid.Bool().Draw(t, "approx"),
		MaxClaimed: genOpt(genNumber()).Draw(t, "max_claimed"), Rate: genText(20).Draw(t, "rate"), Burst: genOpt(genNumber()).Draw(t, "burst"),
		GroupLimit: genOpt(genNumber()).Draw(t, "group_limit"), GroupOnFailure: genText(4).Draw(t, "group_on_failure"), GroupReady: genOpt(genNumber()).Draw(t, "group_ready"),
		Limited:  rapid.SampledFrom([]Limit{"", LimitMaxClaimed, LimitRate}).Draw(t, "limited"),
		Enqueued: genOpt(genNumber()).Draw(t, "enqueued_here"), Acked: genOpt(genNumber()).Draw(t, "acked_here")}
}

func genEvent(t *rapid.T) JobEvent {
	n := func(s string) int64 { return genNumber().Draw(t, s) }
	text := func(s string) string { return genText(50).Draw(t, s) }
	opt := func(s string) Opt[int64] { return genOpt(genNumber()).Draw(t, s) }
	return JobEvent{Event: text("event"), At: n("at"), Database: text("database"), Queue: text("queue"), ID: text("id"), Jobs: n("jobs"),
		Attempt: n("attempt"), MaxAttempts: n("max_attempts"), Worker: text("worker"), Session: text("session"), EnqueuedAt: opt("enqueued_at"),
		ClaimedAt: opt("claimed_at"), RunAt: opt("run_at"), Cause: text("cause"), Error: text("error"), TraceID: text("trace_id")}
}

func genStatus(t *rapid.T) Status {
	n := func(s string) int64 { return genNumber().Draw(t, s) }
	text := func(s string) string { return genText(50).Draw(t, s) }
	opt := func(s string) Opt[int64] { return genOpt(genNumber()).Draw(t, s) }
	return Status{
		UptimeMS: n("uptime_ms"), Generation: n("generation"), ConfigError: text("config_error"), FailedAt: opt("failed_at"), Admin: text("admin"), Page: text("page"),
		Sockets: genList(rapid.Custom(func(*rapid.T) SocketStatus {
			return SocketStatus{Path: text("path"), Sessions: n("sessions"), Error: text("error")}
		}), 0).Draw(t, "sockets"),
		Databases: genList(rapid.Custom(func(*rapid.T) DatabaseStatus {
			return DatabaseStatus{Name: text("name"), Engine: text("engine"), Version: text("version"), Address: text("address"), Cluster: text("cluster"), HeartbeatAgeMS: n("heartbeat_age_ms"),
				Error: text("error"), ReplicaError: text("replica_error"), Draining: rapid.Bool().Draw(t, "draining"), Leases: n("leases"),
				PoolMax: n("pool_max"), PoolInUse: n("pool_in_use"), PoolIdle: n("pool_idle"), ObstacleCount: n("obstacle_count"),
				Obstacles: rapid.SliceOfN(rapid.Custom(func(*rapid.T) Obstacle {
					return Obstacle{Queue: text("queue"), Table: text("table"), Job: text("job"), Doing: text("doing"), Error: text("error"), AgeMS: n("age_ms"), NextTryMS: n("next_try_ms")}
				}), 0, 3).Draw(t, "obstacles")}
		}), 0).Draw(t, "databases"),
		Sessions: genList(rapid.Custom(func(*rapid.T) SessionStatus {
			return SessionStatus{Session: text("session"), Worker: text("worker"), Socket: text("socket"), UID: opt("uid"), PID: opt("pid"),
				AgeMS: n("age_ms"), Leases: n("leases"), OldestLeaseMS: n("oldest_lease_ms"), Waiting: n("waiting"), Open: n("open"),
				Queues: genList(rapid.Custom(func(*rapid.T) QueueLeases {
					return QueueLeases{Queue: text("queue"), Leases: n("leases"), OldestLeaseMS: n("oldest_lease_ms"), OldestJob: text("oldest_job")}
				}), 0).Draw(t, "queues")}
		}), 0).Draw(t, "sessions"),
	}
}

func genReply(t *rapid.T) Reply {
	texts := genList(genText(MaxLease), 0)
	kind := rapid.IntRange(0, 15).Draw(t, "kind")
	if kind == 0 {
		return Reply{Event: EventLost, Lost: texts.Draw(t, "leases")}
	}
	r := Reply{ID: genID().Draw(t, "id"), OK: kind > 1}
	switch kind {
	case 1:
		r.Error = &Error{Code: Code(genText(20).Draw(t, "code")), Message: genText(100).Draw(t, "message"),
			Field: genText(20).Draw(t, "field"), Index: genOpt(genNumber()).Draw(t, "index"),
			RetryMS: genOpt(genNumber()).Draw(t, "retry_ms")}
	case 2:
		n := func(s string) int64 { return genNumber().Draw(t, s) }
		r.Hello = &HelloReply{Version: n("version"), Server: genText(50).Draw(t, "server"), Session: genText(50).Draw(t, "session"),
			Features: texts.Draw(t, "features"), MaxFrame: n("max_frame"), MaxPayload: n("max_payload"), MaxReply: n("max_reply")}
	case 3:
		j := rapid.Custom(genEnqueued).Draw(t, "job")
		r.Enqueued = &j
	case 4:
		r.EnqueuedAll = genList(rapid.Custom(genEnqueued), 1).Draw(t, "jobs")
	case 5:
		r.Jobs, r.Join = genList(rapid.Custom(genJob), 1).Draw(t, "jobs"), rapid.Bool().Draw(t, "join")
	case 6:
		r.Views = genList(rapid.Custom(genView), 1).Draw(t, "jobs")
		r.Scanned, r.After = genOpt(genNumber()).Draw(t, "scanned"), genText(MaxJobID).Draw(t, "after")
	case 7:
		r.Queues = genList(rapid.Custom(genStat), 0).Draw(t, "queues")
	case 8:
		r.Settled = &Settled{Verb: rapid.SampledFrom([]string{"acked", "nacked", "extended"}).Draw(t, "verb"),
			Count: genNumber().Draw(t, "count"), Lost: texts.Draw(t, "lost")}
		r.Join = rapid.Bool().Draw(t, "join")
		if rapid.Bool().Draw(t, "has enqueued") {
			r.EnqueuedAll = genList(rapid.Custom(genEnqueued), 0).Draw(t, "enqueued")
		}
	case 10:
		r.Changes, r.Why = texts.Draw(t, "changes"), genText(40).Draw(t, "why")
	case 11:
		st := genStatus(t)
		r.Status = &st
	case 12:
		r.JobEvents, r.Missed = genList(rapid.Custom(genEvent), 0).Draw(t, "events"), Some(genNumber().Draw(t, "missed"))
	case 15:
		r.Config = &Config{Settings: texts.Draw(t, "settings"), Reloads: genList(rapid.Custom(func(t *rapid.T) Reload {
			return Reload{At: genNumber().Draw(t, "at"), Generation: genNumber().Draw(t, "generation"), Changes: texts.Draw(t, "changes"), Error: genText(40).Draw(t, "error")}
		}), 0).Draw(t, "reloads")}
	case 13:
		r.Sidecars = genList(rapid.Custom(func(t *rapid.T) Sidecar {
			text := func(s string) string { return genText(50).Draw(t, s) }
			return Sidecar{Database: text("database"), Sidecar: text("sidecar"), Name: text("name"), Version: text("version"), State: SidecarState(text("state")),
				HeartbeatAgeMS: genNumber().Draw(t, "heartbeat_age_ms"), Leases: genOpt(genNumber()).Draw(t, "leases"),
				StatsLeader: rapid.Bool().Draw(t, "stats_leader"), Self: rapid.Bool().Draw(t, "self")}
		}), 0).Draw(t, "sidecars")
	case 14:
		r.Findings = genList(rapid.Custom(func(t *rapid.T) Finding {
			text := func(s string) string { return genText(50).Draw(t, s) }
			return Finding{Database: text("database"), Severity: text("severity"), Topic: text("topic"), Text: text("text"), Fix: text("fix")}
		}), 0).Draw(t, "findings")
	case 16:
		points := func(s string) []HistoryPoint {
			return genList(rapid.Custom(func(t *rapid.T) HistoryPoint {
				n := func(s string) int64 { return genNumber().Draw(t, s) }
				return HistoryPoint{At: n("at"), Ready: genOpt(genNumber()).Draw(t, "ready"), Enqueued: n("enqueued"), Acked: n("acked"), Failed: n("failed"), Runs: n("runs"),
					RunP50MS: genOpt(genNumber()).Draw(t, "run_p50_ms"), RunP95MS: genOpt(genNumber()).Draw(t, "run_p95_ms")}
			}), 0).Draw(t, s)
		}
		r.History = genList(rapid.Custom(func(t *rapid.T) QueueHistory {
			return QueueHistory{Queue: genText(50).Draw(t, "queue"), Since: genNumber().Draw(t, "since"), Minutes: points("minutes"), Hours: points("hours")}
		}), 0).Draw(t, "history")
	case 9:
		r.Count = genOpt(genNumber()).Draw(t, "count")
	}
	return r
}

func TestReplyRoundTrip(t *testing.T) {
	eachCodec(t, func(t *testing.T, c Codec) {
		rapid.Check(t, func(t *rapid.T) {
			want := genReply(t)
			var got Reply
			sent := body(c, c.AppendReply(nil, &want))
			if err := c.DecodeReply(sent, &got); err != nil {
				t.Fatalf("%v\n%q", err, sent)
			}
			if diff := cmp.Diff(want, got, compareIDs); diff != "" {
				t.Fatalf("-sent +received:\n%s", diff)
			}
		})
	})
}

// TestGeneratorsDrawEveryField finds fields that the round trips of random messages would not test.
func TestGeneratorsDrawEveryField(t *testing.T) {
	for name, draw := range map[string]func(seed int) any{
		"Job":       func(seed int) any { return rapid.Custom(genJob).Example(seed) },
		"JobView":   func(seed int) any { return rapid.Custom(genView).Example(seed) },
		"QueueStat": func(seed int) any { return rapid.Custom(genStat).Example(seed) },
	} {
		drawn := map[string]bool{}
		var fields []string
		for seed := range 100 {
			v := reflect.ValueOf(draw(seed))
			fields = fields[:0]
			for _, f := range reflect.VisibleFields(v.Type()) {
				fields = append(fields, f.Name)
				drawn[f.Name] = drawn[f.Name] || !v.FieldByIndex(f.Index).IsZero()
			}
		}
		for _, f := range fields {
			if !drawn[f] {
				t.Errorf("the field %s of %s is never drawn", f, name)
			}
		}
	}
}
