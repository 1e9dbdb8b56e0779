package protocol

import "math"

// anyInt is the range of numbers in replies, which only the wire limits.
const anyInt = MaxSafeInt

func number[M any](s string, at func(*M) *int64) field[M] {
	return always(isInt(s, -anyInt, anyInt, at))
}

func optNumber[M any](s string, at func(*M) *Opt[int64]) field[M] {
	return isOptInt(s, -anyInt, anyInt, at)
}

func isWord[M any, T ~string](s string, at func(*M) *T) field[M] {
	return always(isText(s, -1, at))
}

func isOptWord[M any, T ~string](s string, at func(*M) *T) field[M] {
	return isText(s, -1, at)
}

func isWords[M any](s string, at func(*M) *[]string) field[M] {
	return always(isTexts(s, 0, math.MaxInt, -1, at))
}

// needs rejects an element without the named field. This keeps the memory of lists without a limit
// in proportion to their bytes.
func needs[E any](ms *message[E], name string) func(*E, presence) *Error {
	pos := ms.index[name].pos
	return func(_ *E, p presence) *Error {
		if !p.has(pos) {
			return missing(name)
		}
		return nil
	}
}

var errorMessage = newMessage([]field[Error]{
	isWord("code", func(e *Error) *Code { return &e.Code }),
	isWord("message", func(e *Error) *string { return &e.Message }),
	isOptWord("field", func(e *Error) *string { return &e.Field }),
	optNumber("index", func(e *Error) *Opt[int64] { return &e.Index }),
	optNumber("retry_ms", func(e *Error) *Opt[int64] { return &e.RetryMS }),
})

var enqueuedMessage = newMessage([]field[EnqueuedJob]{
	isWord("id", func(j *EnqueuedJob) *string { return &j.ID }),
	isBool("duplicate", func(j *EnqueuedJob) *bool { return &j.Duplicate }),
	isOptWord("state", func(j *EnqueuedJob) *State { return &j.State }),
	isOptWord("outcome", func(j *EnqueuedJob) *Outcome { return &j.Outcome }),
})

var progressMessage = newMessage([]field[Progress]{
	optNumber("done", func(p *Progress) *Opt[int64] { return &p.Done }),
	optNumber("total", func(p *Progress) *Opt[int64] { return &p.Total }),
	isBytes("data", func(p *Progress) *[]byte { return &p.Data }),
	number("at", func(p *Progress) *int64 { return &p.At }),
})

var claimedMessage = newMessage([]field[Job]{
	isWord("id", func(j *Job) *string { return &j.ID }),
	isWord("queue", func(j *Job) *string { return &j.Queue }),
	isWord("lease", func(j *Job) *string { return &j.Lease }),
	always(isBytes("payload", func(j *Job) *[]byte { return &j.Payload })),
	number("attempt", func(j *Job) *int64 { return &j.Attempt }),
	number("max_attempts", func(j *Job) *int64 { return &j.MaxAttempts }),
	number("fence", func(j *Job) *int64 { return &j.Fence }),
	number("priority", func(j *Job) *int64 { return &j.Priority }),
	number("enqueued_at", func(j *Job) *int64 { return &j.EnqueuedAt }),
	optNumber("timeout_ms", func(j *Job) *Opt[int64] { return &j.TimeoutMS }),
	isHeaders("headers", func(j *Job) *map[string]string { return &j.Headers }),
	isOptWord("key", func(j *Job) *string { return &j.Key }),
	isOptWord("last_error", func(j *Job) *string { return &j.LastError }),
	isMap("progress", progressMessage, func(j *Job) *Progress { return j.Progress }, func(j *Job, p *Progress) { j.Progress = p }),
})

var failureMessage = newMessage([]field[Failure]{
	number("attempt", func(f *Failure) *int64 { return &f.Attempt }),
	isWord("cause", func(f *Failure) *string { return &f.Cause }),
	isWord("message", func(f *Failure) *string { return &f.Message }),
	number("at", func(f *Failure) *int64 { return &f.At }),
})

var viewMessage = newMessage([]field[JobView]{
	isWord("id", func(j *JobView) *string { return &j.ID }),
	isWord("queue", func(j *JobView) *string { return &j.Queue }),
	isWord("state", func(j *JobView) *State { return &j.State }),
	always(isBytes("payload", func(j *JobView) *[]byte { return &j.Payload })),
	number("priority", func(j *JobView) *int64 { return &j.Priority }),
	number("attempt", func(j *JobView) *int64 { return &j.Attempt }),
	number("max_attempts", func(j *JobView) *int64 { return &j.MaxAttempts }),
	isInt("enqueued_at", -anyInt, anyInt, func(j *JobView) *int64 { return &j.EnqueuedAt }),
	optNumber("run_at", func(j *JobView) *Opt[int64] { return &j.RunAt }),
	optNumber("claimed_at", func(j *JobView) *Opt[int64] { return &j.ClaimedAt }),
	optNumber("finished_at", func(j *JobView) *Opt[int64] { return &j.FinishedAt }),
	isOptWord("worker", func(j *JobView) *string { return &j.Worker }),
	isOptWord("key", func(j *JobView) *string { return &j.Key }),
	isOptWord("group", func(j *JobView) *string { return &j.Group }),
	isHeaders("headers", func(j *JobView) *map[string]string { return &j.Headers }),
	isBytes("result", func(j *JobView) *[]byte { return &j.Result }),
	optNumber("left_out", func(j *JobView) *Opt[int64] { return &j.LeftOut }),
	always(isList("errors", 0, math.MaxInt, failureMessage, func(j *JobView) *[]Failure { return &j.Errors }, needs(failureMessage, "cause"))),
	isOptWord("waits_for", func(j *JobView) *WaitsFor { return &j.WaitsFor }),
	optNumber("start_before", func(j *JobView) *Opt[int64] { return &j.StartBefore }),
	isList("behind", 0, math.MaxInt, unchangedMessage, func(j *JobView) *[]Unchanged { return &j.Behind }, needs(unchangedMessage, "id")),
	isMap("progress", progressMessage, func(j *JobView) *Progress { return j.Progress }, func(j *JobView, p *Progress) { j.Progress = p }),
})

var statMessage = newMessage([]field[QueueStat]{
	isWord("queue", func(q *QueueStat) *string { return &q.Queue }),
	number("ready", func(q *QueueStat) *int64 { return &q.Ready }),
	number("blocked", func(q *QueueStat) *int64 { return &q.Blocked }),
	number("scheduled", func(q *QueueStat) *int64 { return &q.Scheduled }),
	number("claimed", func(q *QueueStat) *int64 { return &q.Claimed }),
	number("dead", func(q *QueueStat) *int64 { return &q.Dead }),
	number("done", func(q *QueueStat) *int64 { return &q.Done }),
	always(isBool("paused", func(q *QueueStat) *bool { return &q.Paused })),
	number("oldest_ready_ms", func(q *QueueStat) *int64 { return &q.OldestReadyMS }),
	number("oldest_claimed_ms", func(q *QueueStat) *int64 { return &q.OldestClaimedMS }),
	isBool("approx", func(q *QueueStat) *bool { return &q.Approx }),
	optNumber("max_claimed", func(q *QueueStat) *Opt[int64] { return &q.MaxClaimed }),
	isOptWord("rate", func(q *QueueStat) *string { return &q.Rate }),
	optNumber("burst", func(q *QueueStat) *Opt[int64] { return &q.Burst }),
	optNumber("group_limit", func(q *QueueStat) *Opt[int64] { return &q.GroupLimit }),
	isOptWord("group_on_failure", func(q *QueueStat) *string { return &q.GroupOnFailure }),
	optNumber("group_ready", func(q *QueueStat) *Opt[int64] { return &q.GroupReady }),
	isOptWord("limited", func(q *QueueStat) *Limit { return &q.Limited }),
	optNumber("enqueued_here", func(q *QueueStat) *Opt[int64] { return &q.Enqueued }),
	optNumber("acked_here", func(q *QueueStat) *Opt[int64] { return &q.Acked }),
})

var pointMessage = newMessage([]field[HistoryPoint]{
	number("at", func(p *HistoryPoint) *int64 { return &p.At }),
	optNumber("ready", func(p *HistoryPoint) *Opt[int64] { return &p.Ready }),
	number("enqueued", func(p *HistoryPoint) *int64 { return &p.Enqueued }),
	number("acked", func(p *HistoryPoint) *int64 { return &p.Acked }),
	number("failed", func(p *HistoryPoint) *int64 { return &p.Failed }),
	number("runs", func(p *HistoryPoint) *int64 { return &p.Runs }),
	optNumber("run_p50_ms", func(p *HistoryPoint) *Opt[int64] { return &p.RunP50MS }),
	optNumber("run_p95_ms", func(p *HistoryPoint) *Opt[int64] { return &p.RunP95MS }),
})

var historyMessage = newMessage([]field[QueueHistory]{
	isOptWord("queue", func(h *QueueHistory) *string { return &h.Queue }),
	number("since", func(h *QueueHistory) *int64 { return &h.Since }),
	always(isList("minutes", 0, math.MaxInt, pointMessage, func(h *QueueHistory) *[]HistoryPoint { return &h.Minutes }, needs(pointMessage, "at"))),
	isList("hours", 0, math.MaxInt, pointMessage, func(h *QueueHistory) *[]HistoryPoint { return &h.Hours }, needs(pointMessage, "at")),
})

var socketMessage = newMessage([]field[SocketStatus]{
	isWord("path", func(s *SocketStatus) *string { return &s.Path }),
	number("sessions", func(s *SocketStatus) *int64 { return &s.Sessions }),
	isOptWord("error", func(s *SocketStatus) *string { return &s.Error }),
})

var databaseMessage = newMessage([]field[DatabaseStatus]{
	isWord("name", func(d *DatabaseStatus) *string { return &d.Name }),
	isWord("engine", func(d *DatabaseStatus) *string { return &d.Engine }),
	isWord("version", func(d *DatabaseStatus) *string { return &d.Version }),
	isWord("address", func(d *DatabaseStatus) *string { return &d.Address }),
	isOptWord("cluster", func(d *DatabaseStatus) *string { return &d.Cluster }),
	number("heartbeat_age_ms", func(d *DatabaseStatus) *int64 { return &d.HeartbeatAgeMS }),
	isOptWord("error", func(d *DatabaseStatus) *string { return &d.Error }),
	isOptWord("replica_error", func(d *DatabaseStatus) *string { return &d.ReplicaError }),
	isBool("draining", func(d *DatabaseStatus) *bool { return &d.Draining }),
	number("leases", func(d *DatabaseStatus) *int64 { return &d.Leases }),
	number("pool_max", func(d *DatabaseStatus) *int64 { return &d.PoolMax }),
	number("pool_in_use", func(d *DatabaseStatus) *int64 { return &d.PoolInUse }),
	number("pool_idle", func(d *DatabaseStatus) *int64 { return &d.PoolIdle }),
	number("obstacle_count", func(d *DatabaseStatus) *int64 { return &d.ObstacleCount }),
	isList("obstacles", 0, math.MaxInt, obstacleMessage, func(d *DatabaseStatus) *[]Obstacle { return &d.Obstacles }, needs(obstacleMessage, "doing")),
})

var obstacleMessage = newMessage([]field[Obstacle]{
	isOptWord("queue", func(o *Obstacle) *string { return &o.Queue }),
	isOptWord("table", func(o *Obstacle) *string { return &o.Table }),
	isOptWord("job", func(o *Obstacle) *string { return &o.Job }),
	isWord("doing", func(o *Obstacle) *string { return &o.Doing }),
	isWord("error", func(o *Obstacle) *string { return &o.Error }),
	number("age_ms", func(o *Obstacle) *int64 { return &o.AgeMS }),
	number("next_try_ms", func(o *Obstacle) *int64 { return &o.NextTryMS }),
})

var queueLeasesMessage = newMessage([]field[QueueLeases]{
	isOptWord("queue", func(l *QueueLeases) *string { return &l.Queue }),
	number("leases", func(l *QueueLeases) *int64 { return &l.Leases }),
	number("oldest_lease_ms", func(l *QueueLeases) *int64 { return &l.OldestLeaseMS }),
	isWord("oldest_job", func(l *QueueLeases) *string { return &l.OldestJob }),
})

var sessionMessage = newMessage([]field[SessionStatus]{
	isWord("session", func(s *SessionStatus) *string { return &s.Session }),
	isOptWord("worker", func(s *SessionStatus) *string { return &s.Worker }),
	isOptWord("socket", func(s *SessionStatus) *string { return &s.Socket }),
	optNumber("uid", func(s *SessionStatus) *Opt[int64] { return &s.UID }),
	optNumber("pid", func(s *SessionStatus) *Opt[int64] { return &s.PID }),
	number("age_ms", func(s *SessionStatus) *int64 { return &s.AgeMS }),
	number("leases", func(s *SessionStatus) *int64 { return &s.Leases }),
	number("oldest_lease_ms", func(s *SessionStatus) *int64 { return &s.OldestLeaseMS }),
	number("waiting", func(s *SessionStatus) *int64 { return &s.Waiting }),
	number("open", func(s *SessionStatus) *int64 { return &s.Open }),
	always(isList("queues", 0, math.MaxInt, queueLeasesMessage, func(s *SessionStatus) *[]QueueLeases { return &s.Queues }, needs(queueLeasesMessage, "oldest_job"))),
})

var eventMessage = newMessage([]field[JobEvent]{
	isWord("event", func(e *JobEvent) *string { return &e.Event }),
	number("at", func(e *JobEvent) *int64 { return &e.At }),
	isWord("database", func(e *JobEvent) *string { return &e.Database }),
	isOptWord("queue", func(e *JobEvent) *string { return &e.Queue }),
	isOptWord("id", func(e *JobEvent) *string { return &e.ID }),
	isInt("jobs", -anyInt, anyInt, func(e *JobEvent) *int64 { return &e.Jobs }),
	isInt("attempt", -anyInt, anyInt, func(e *JobEvent) *int64 { return &e.Attempt }),
	isInt("max_attempts", -anyInt, anyInt, func(e *JobEvent) *int64 { return &e.MaxAttempts }),
	isOptWord("worker", func(e *JobEvent) *string { return &e.Worker }),
	isOptWord("session", func(e *JobEvent) *string { return &e.Session }),
	optNumber("enqueued_at", func(e *JobEvent) *Opt[int64] { return &e.EnqueuedAt }),
	optNumber("claimed_at", func(e *JobEvent) *Opt[int64] { return &e.ClaimedAt }),
	optNumber("run_at", func(e *JobEvent) *Opt[int64] { return &e.RunAt }),
	isOptWord("cause", func(e *JobEvent) *string { return &e.Cause }),
	isOptWord("error", func(e *JobEvent) *string { return &e.Error }),
	isOptWord("trace_id", func(e *JobEvent) *string { return &e.TraceID }),
})

var reloadMessage = newMessage([]field[Reload]{
	number("at", func(l *Reload) *int64 { return &l.At }),
	number("generation", func(l *Reload) *int64 { return &l.Generation }),
	isWords("changes", func(l *Reload) *[]string { return &l.Changes }),
	isOptWord("error", func(l *Reload) *string { return &l.Error }),
})

var sidecarMessage = newMessage([]field[Sidecar]{
	isWord("database", func(s *Sidecar) *string { return &s.Database }),
	isWord("sidecar", func(s *Sidecar) *string { return &s.Sidecar }),
	isWord("name", func(s *Sidecar) *string { return &s.Name }),
	isOptWord("version", func(s *Sidecar) *string { return &s.Version }),
	isWord("state", func(s *Sidecar) *SidecarState { return &s.State }),
	number("heartbeat_age_ms", func(s *Sidecar) *int64 { return &s.HeartbeatAgeMS }),
	optNumber("leases", func(s *Sidecar) *Opt[int64] { return &s.Leases }),
	isBool("stats_leader", func(s *Sidecar) *bool { return &s.StatsLeader }),
	isBool("self", func(s *Sidecar) *bool { return &s.Self }),
})

var unchangedMessage = newMessage([]field[Unchanged]{
	isWord("id", func(u *Unchanged) *string { return &u.ID }),
	isWord("state", func(u *Unchanged) *State { return &u.State }),
})

var endedMessage = newMessage([]field[EndedJob]{
	isWord("id", func(j *EndedJob) *string { return &j.ID }),
	isWord("state", func(j *EndedJob) *State { return &j.State }),
	isBytes("result", func(j *EndedJob) *[]byte { return &j.Result }),
	isOptWord("last_error", func(j *EndedJob) *string { return &j.LastError }),
	optNumber("left_out", func(j *EndedJob) *Opt[int64] { return &j.LeftOut }),
})

var findingMessage = newMessage([]field[Finding]{
	isOptWord("database", func(f *Finding) *string { return &f.Database }),
	isWord("severity", func(f *Finding) *string { return &f.Severity }),
	isWord("topic", func(f *Finding) *string { return &f.Topic }),
	isWord("text", func(f *Finding) *string { return &f.Text }),
	isOptWord("fix", func(f *Finding) *string { return &f.Fix }),
})

func ofConfig(f field[Config]) field[Reply] {
	return nested(f, func(r *Reply) bool { return r.Config != nil }, func(r *Reply) *Config {
		if r.Config == nil {
			r.Config = new(Config)
		}
		return r.Config
	})
}

func ofStatus(f field[Status]) field[Reply] {
	return nested(f, func(r *Reply) bool { return r.Status != nil }, func(r *Reply) *Status {
		if r.Status == nil {
			r.Status = new(Status)
		}
		return r.Status
	})
}

func ofHello(f field[HelloReply]) field[Reply] {
	return nested(f, func(r *Reply) bool { return r.Hello != nil }, func(r *Reply) *HelloReply {
		if r.Hello == nil {
			r.Hello = new(HelloReply)
		}
		return r.Hello
	})
}

// settledAs is the count of a settle. The verb is the field's name.
func settledAs(verb string) field[Reply] {
	f := number(verb, func(r *Reply) *int64 { return &r.settled(verb).Count })
	return presentIf(f, func(r *Reply) bool { return r.Settled != nil && r.Settled.Verb == verb })
}

// settled finds or creates r.Settled and sets its verb if verb is not empty.
func (r *Reply) settled(verb string) *Settled {
	if r.Settled == nil {
		r.Settled = new(Settled)
	}
	if verb != "" {
		r.Settled.Verb = verb
	}
	return r.Settled
}

var replyMessage = newMessage([]field[Reply]{
	isID("id", func(r *Reply) *RequestID { return &r.ID }),
	isOptWord("event", func(r *Reply) *string { return &r.Event }),
	presentIf(isBool("ok", func(r *Reply) *bool { return &r.OK }), func(r *Reply) bool { return r.Event == "" }),
	isMap("error", errorMessage, func(r *Reply) *Error { return r.Error }, func(r *Reply, e *Error) { r.Error = e }),

	ofHello(number("version", func(h *HelloReply) *int64 { return &h.Version })),
	ofHello(isWord("server", func(h *HelloReply) *string { return &h.Server })),
	ofHello(isWord("session", func(h *HelloReply) *string { return &h.Session })),
	ofHello(isWords("features", func(h *HelloReply) *[]string { return &h.Features })),
	ofHello(number("max_frame", func(h *HelloReply) *int64 { return &h.MaxFrame })),
	ofHello(number("max_payload", func(h *HelloReply) *int64 { return &h.MaxPayload })),
	ofHello(number("max_reply", func(h *HelloReply) *int64 { return &h.MaxReply })),

	isMap("job", enqueuedMessage, func(r *Reply) *EnqueuedJob { return r.Enqueued },
		func(r *Reply, j *EnqueuedJob) { r.Enqueued = j }),
	jobsField(),
	isMap("claim_error", errorMessage, func(r *Reply) *Error { return r.ClaimError }, func(r *Reply, e *Error) { r.ClaimError = e }),
	isBool("join", func(r *Reply) *bool { return &r.Join }),
	settledAs("acked"), settledAs("nacked"), settledAs("extended"),
	presentIf(isTexts("lost", 0, MaxList, -1, func(r *Reply) *[]string { return &r.settled("").Lost }),
		func(r *Reply) bool { return r.Settled != nil }),
	presentIf(isList("enqueued", 0, MaxList, enqueuedMessage, func(r *Reply) *[]EnqueuedJob { return &r.EnqueuedAll }, nil),
		func(r *Reply) bool { return r.Settled != nil && r.EnqueuedAll != nil }),
	isList("queues", 0, math.MaxInt, statMessage, func(r *Reply) *[]QueueStat { return &r.Queues }, needs(statMessage, "queue")),
	isList("events", 0, math.MaxInt, eventMessage, func(r *Reply) *[]JobEvent { return &r.JobEvents }, needs(eventMessage, "event")),
	optNumber("missed", func(r *Reply) *Opt[int64] { return &r.Missed }),
	optNumber("scanned", func(r *Reply) *Opt[int64] { return &r.Scanned }),
	isOptWord("after", func(r *Reply) *string { return &r.After }),
	isOptWord("after_queue", func(r *Reply) *string { return &r.AfterQueue }),
	optNumber("count", func(r *Reply) *Opt[int64] { return &r.Count }),
	isBool("unknown", func(r *Reply) *bool { return &r.Unknown }),
	isList("unchanged", 0, math.MaxInt, unchangedMessage, func(r *Reply) *[]Unchanged { return &r.Unchanged }, needs(unchangedMessage, "id")),
	isList("ended", 0, math.MaxInt, endedMessage, func(r *Reply) *[]EndedJob { return &r.Ended }, needs(endedMessage, "id")),
	isTexts("changes", 0, math.MaxInt, -1, func(r *Reply) *[]string { return &r.Changes }),
	isOptWord("why", func(r *Reply) *string { return &r.Why }),
	ofStatus(number("uptime_ms", func(s *Status) *int64 { return &s.UptimeMS })),
	ofStatus(number("generation", func(s *Status) *int64 { return &s.Generation })),
	ofStatus(isOptWord("config_error", func(s *Status) *string { return &s.ConfigError })),
	ofStatus(optNumber("failed_at", func(s *Status) *Opt[int64] { return &s.FailedAt })),
	ofStatus(isOptWord("admin", func(s *Status) *string { return &s.Admin })),
	ofStatus(isOptWord("page", func(s *Status) *string { return &s.Page })),
	ofStatus(always(isList("sockets", 0, math.MaxInt, socketMessage, func(s *Status) *[]SocketStatus { return &s.Sockets }, needs(socketMessage, "path")))),
	ofStatus(always(isList("databases", 0, math.MaxInt, databaseMessage, func(s *Status) *[]DatabaseStatus { return &s.Databases }, needs(databaseMessage, "name")))),
	ofStatus(always(isList("sessions", 0, math.MaxInt, sessionMessage, func(s *Status) *[]SessionStatus { return &s.Sessions }, needs(sessionMessage, "session")))),
	ofConfig(isWords("settings", func(c *Config) *[]string { return &c.Settings })),
	ofConfig(always(isList("reloads", 0, math.MaxInt, reloadMessage, func(c *Config) *[]Reload { return &c.Reloads }, needs(reloadMessage, "at")))),
	isList("history", 0, math.MaxInt, historyMessage, func(r *Reply) *[]QueueHistory { return &r.History }, needs(historyMessage, "since")),
	isList("schedules", 0, math.MaxInt, scheduleViewMessage, func(r *Reply) *[]Schedule { return &r.Schedules }, needs(scheduleViewMessage, "name")),
	isMap("declared", declaredMessage, func(r *Reply) *Declared { return r.Declared }, func(r *Reply, d *Declared) { r.Declared = d }),
	isMap("batch", batchMessage, func(r *Reply) *Batch { return r.Batch }, func(r *Reply, b *Batch) { r.Batch = b }),
	isList("batches", 0, math.MaxInt, batchMessage, func(r *Reply) *[]Batch { return &r.Batches }, needs(batchMessage, "id")),
	isList("sidecars", 0, math.MaxInt, sidecarMessage, func(r *Reply) *[]Sidecar { return &r.Sidecars }, needs(sidecarMessage, "sidecar")),
	isList("findings", 0, math.MaxInt, findingMessage, func(r *Reply) *[]Finding { return &r.Findings }, needs(findingMessage, "text")),
	presentIf(isWords("leases", func(r *Reply) *[]string { return &r.Lost }),
		func(r *Reply) bool { return r.Event == EventLost }),
	isOptWord("reason", func(r *Reply) *string { return &r.Reason }),
})

// jobsField is the field "jobs", whose elements are of one of three kinds, depending on the op.
func jobsField() field[Reply] {
	return field[Reply]{
		name: newName("jobs"),
		has: func(r *Reply) bool {
			return r.Jobs != nil || r.Views != nil || r.EnqueuedAll != nil && r.Settled == nil
		},
		read: readJobs,
		write: func(e *encoder, n *name, r *Reply) {
			e.name(n)
			switch {
			case r.Jobs != nil:
				writeList(e, claimedMessage, r.Jobs)
			case r.Views != nil:
				writeList(e, viewMessage, r.Views)
			default:
				writeList(e, enqueuedMessage, r.EnqueuedAll)
			}
		},
	}
}

// reply reads a whole reply or event.
func (d *decoder) reply(r *Reply) *Error {
	p, err := replyMessage.read(d, r)
	if err != nil {
		return err
	}
	if err := d.src.end(); err != nil {
		return err
	}
	ok := p.has(replyMessage.index["ok"].pos)
	switch {
	case r.Event == "" && !ok:
		return missing("ok")
	case ok && r.OK == (r.Error != nil):
		return BadField("error", "ok and error contradict each other")
	}
	return nil
}
