package protocol

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// The fields of a request, in the order of writing. The positions are the bits of a presence.
const (
	fID = iota
	fOp
	fVersion
	fWorker
	fEvents
	fQueue
	fQueues
	fPayload
	fPriority
	fDelayMS
	fRunAt
	fKey
	fHeaders
	fMaxAttempts
	fTimeoutMS
	fJobs
	fMax
	fWaitMS
	fLeaseMS
	fOrder
	fWeights
	fLease
	fLeases
	fResult
	fEnqueue
	fClaim
	fError
	fDead
	fSnooze
	fBind
	fRequest
	fIDs
	fState
	fAfter
	fAll
	fText
	fNewest
	fMaxClaimed
	fRate
	fBurst
	fNone
	fDelete
	fSchedule
	fDryRun
	fDo
	fGroup
	fGroupLimit
	fGroupOnFailure
	fGroupReady
	fAfterQueue
	fMode
	fData
	fDone
	fTotal
	fBatch
	fOn
	fStartBefore
	fStartWithinMS
	fOnExpiry
	fRetainMS
	fKeyUntil
	fOnConflict
	fDebounceMaxMS
)

// jobFields are the fields of the single job in an enqueue.
const jobFields = presence(1<<fPayload | 1<<fPriority | 1<<fRunAt | 1<<fKey | 1<<fHeaders | 1<<fMaxAttempts | 1<<fTimeoutMS | 1<<fGroup | 1<<fBatch |
	1<<fStartBefore | 1<<fStartWithinMS | 1<<fOnExpiry | 1<<fRetainMS | 1<<fKeyUntil | 1<<fOnConflict | 1<<fDebounceMaxMS)

// The fields of a job that a producer sends, for a list of jobs and for the single form.
var (
	jobQueue = checked(isText("queue", MaxQueueName, func(j *NewJob) *string { return &j.Queue }),
		func(j *NewJob) *Error { return CheckQueueName("queue", j.Queue) })
	jobPayload = presentIf(isBytes("payload", func(j *NewJob) *[]byte { return &j.Payload }),
		func(j *NewJob) bool { return len(j.Payload) > 0 })
	jobPriority = isInt("priority", MinPriority, MaxPriority, func(j *NewJob) *int64 { return &j.Priority })
	jobDelayMS  = isOptInt("delay_ms", 0, MaxDelayMS, func(j *NewJob) *Opt[int64] { return &j.DelayMS })
	jobRunAt    = checked(isOptInt("run_at", 0, MaxRunAt, func(j *NewJob) *Opt[int64] { return &j.RunAt }),
		func(j *NewJob) *Error { return checkInstant("run_at", j.RunAt) })
	jobKey = checked(isText("key", MaxKey, func(j *NewJob) *string { return &j.Key }),
		func(j *NewJob) *Error { return notEmpty("key", j.Key) })
	jobGroup = checked(isText("group", MaxGroup, func(j *NewJob) *string { return &j.Group }),
		func(j *NewJob) *Error { return notEmpty("group", j.Group) })
	jobHeaders     = isHeaders("headers", func(j *NewJob) *map[string]string { return &j.Headers })
	jobMaxAttempts = isOptInt("max_attempts", 1, MaxMaxAttempt, func(j *NewJob) *Opt[int64] { return &j.MaxAttempts })
	jobTimeoutMS   = isOptInt("timeout_ms", 1, MaxTimeoutMS, func(j *NewJob) *Opt[int64] { return &j.TimeoutMS })
	jobBatch       = checked(isText("batch", MaxBatchID, func(j *NewJob) *string { return &j.Batch }), func(j *NewJob) *Error { return checkBatchID(j.Batch) })

	jobStartBefore = checked(isOptInt("start_before", 0, MaxRunAt, func(j *NewJob) *Opt[int64] { return &j.StartBefore }),
		func(j *NewJob) *Error { return checkInstant("start_before", j.StartBefore) })
	jobStartWithinMS = isOptInt("start_within_ms", 1, MaxDelayMS, func(j *NewJob) *Opt[int64] { return &j.StartWithinMS })
	jobOnExpiry      = checked(isText("on_expiry", maxShownName, func(j *NewJob) *string { return &j.OnExpiry }),
		func(j *NewJob) *Error { return oneOf("on_expiry", j.OnExpiry, ExpireDead, ExpireDelete) })

	jobRetainMS = isOptInt("retain_ms", 1, MaxDelayMS, func(j *NewJob) *Opt[int64] { return &j.RetainMS })

	jobKeyUntil = checked(isText("key_until", maxShownName, func(j *NewJob) *string { return &j.KeyUntil }),
		func(j *NewJob) *Error { return oneOf("key_until", j.KeyUntil, KeyUntilStart, KeyUntilFinish) })
	jobOnConflict = checked(isText("on_conflict", maxShownName, func(j *NewJob) *string { return &j.OnConflict }),
		func(j *NewJob) *Error {
			return oneOf("on_conflict", j.OnConflict, ConflictKeep, ConflictReplace, ConflictDebounce)
		})
	jobDebounceMaxMS = isOptInt("debounce_max_ms", 1, MaxDelayMS, func(j *NewJob) *Opt[int64] { return &j.DebounceMaxMS })

	jobMessage = newMessage([]field[NewJob]{jobQueue, jobPayload, jobPriority, jobDelayMS, jobRunAt,
		jobKey, jobGroup, jobHeaders, jobMaxAttempts, jobTimeoutMS, jobBatch, jobStartBefore, jobStartWithinMS, jobOnExpiry, jobRetainMS,
		jobKeyUntil, jobOnConflict, jobDebounceMaxMS})
)

// nextClaimMessage is the claim that an ack or a nack carries. It has no wait_ms, because the settle must not wait for jobs.
var nextClaimMessage = newMessage([]field[NextClaim]{
	checked(isText("queue", MaxQueueName, func(c *NextClaim) *string { return &c.Queue }),
		func(c *NextClaim) *Error { return CheckQueueName("queue", c.Queue) }),
	checked(isTexts("queues", 1, MaxList, MaxQueueName, func(c *NextClaim) *[]string { return &c.Queues }),
		func(c *NextClaim) *Error { return checkQueues(c.Queues) }),
	isOptInt("max", 1, MaxList, func(c *NextClaim) *Opt[int64] { return &c.Max }),
	isOptInt("lease_ms", MinLeaseMS, MaxLeaseMS, func(c *NextClaim) *Opt[int64] { return &c.LeaseMS }),
	checked(isText("order", maxShownName, func(c *NextClaim) *Order { return &c.Order }),
		func(c *NextClaim) *Error { return checkOrder(c.Order) }),
	isWeights("weights", func(c *NextClaim) *map[string]int64 { return &c.Weights }),
})

func checkNextClaim(r *Request) *Error {
	c := r.Claim
	switch {
	case c.Queue == "" && c.Queues == nil:
		return missing("queue")
	case c.Queue != "" && c.Queues != nil:
		return BadField("queues", "queue and queues exclude each other")
	}
	return checkWeights(c.Weights, c.Order, c.Queue, c.Queues)
}

func checkNewJob(j *NewJob, _ presence) *Error {
	if j.Queue == "" {
		return missing("queue")
	}
	if j.DelayMS.Set && j.RunAt.Set {
		return BadField("run_at", "delay_ms and run_at exclude each other")
	}
	if j.StartBefore.Set && j.StartWithinMS.Set {
		return BadField("start_within_ms", "start_before and start_within_ms exclude each other")
	}
	return checkConflict(j)
}

// checkConflict checks the options of a job's key.
func checkConflict(j *NewJob) *Error {
	replaces := j.OnConflict == ConflictReplace || j.OnConflict == ConflictDebounce
	switch {
	case j.KeyUntil != "" && j.Key == "":
		return BadField("key_until", "key_until needs a key")
	case j.OnConflict != "" && j.Key == "":
		return BadField("on_conflict", "on_conflict needs a key")
	case replaces && j.Batch != "":
		return BadField("on_conflict", "a job of a batch replaces no other one: leave out on_conflict, or batch")
	case j.OnConflict == ConflictDebounce && j.DelayMS.Or(0) == 0:
		return BadField("delay_ms", "on_conflict debounce needs a delay_ms")
	case j.DebounceMaxMS.Set && j.OnConflict != ConflictDebounce:
		return BadField("debounce_max_ms", "debounce_max_ms needs on_conflict debounce")
	case j.DebounceMaxMS.Set && j.DebounceMaxMS.Value < j.DelayMS.Value:
		return BadField("debounce_max_ms", "debounce_max_ms (%d) is below delay_ms (%d): a second enqueue would make the job ready before the delay of the first one",
			j.DebounceMaxMS.Value, j.DelayMS.Value)
	}
	return nil
}

func missing(name string) *Error {
	return BadField(name, "%s is missing", name)
}

func notEmpty(name, v string) *Error {
	if v == "" {
		return BadField(name, "%s is empty; leave it out for none", name)
	}
	return nil
}

func ofJob(f field[NewJob]) field[Request] {
	return nested(f, func(*Request) bool { return true }, func(r *Request) *NewJob { return &r.Job })
}

var requestMessage = newMessage([]field[Request]{
	fID:      isID("id", func(r *Request) *RequestID { return &r.ID }),
	fOp:      isText("op", maxShownName, func(r *Request) *Op { return &r.Op }),
	fVersion: isOptInt("version", 1, MaxSafeInt, func(r *Request) *Opt[int64] { return &r.Version }),
	fWorker:  isText("worker", MaxWorkerName, func(r *Request) *string { return &r.Worker }),
	fEvents: checked(isTexts("events", 0, MaxList, maxShownName, func(r *Request) *[]string { return &r.Events }),
		checkEvents),
	fQueue: checked(isText("queue", MaxQueueName, func(r *Request) *string { return &r.Queue }),
		func(r *Request) *Error { return CheckQueueName("queue", r.Queue) }),
	fQueues: checked(isTexts("queues", 1, MaxList, MaxQueueName, func(r *Request) *[]string { return &r.Queues }),
		func(r *Request) *Error { return checkQueues(r.Queues) }),
	fPayload: ofJob(jobPayload),
	fPriority: presentIf(ofJob(jobPriority), func(r *Request) bool {
		return r.Job.Priority != 0 || r.Op == OpChange && r.Priority.Set // a change to 0 is one
	}),
	fDelayMS:     isOptInt("delay_ms", 0, MaxDelayMS, func(r *Request) *Opt[int64] { return &r.DelayMS }),
	fRunAt:       ofJob(jobRunAt),
	fKey:         ofJob(jobKey),
	fHeaders:     ofJob(jobHeaders),
	fMaxAttempts: ofJob(jobMaxAttempts),
	fTimeoutMS:   ofJob(jobTimeoutMS),
	fJobs:        isList("jobs", 1, MaxList, jobMessage, func(r *Request) *[]NewJob { return &r.Jobs }, checkNewJob),
	fMax:         isOptInt("max", 1, MaxList, func(r *Request) *Opt[int64] { return &r.Max }),
	fWaitMS:      isInt("wait_ms", 0, MaxWaitMS, func(r *Request) *int64 { return &r.WaitMS }),
	fLeaseMS:     isOptInt("lease_ms", MinLeaseMS, MaxLeaseMS, func(r *Request) *Opt[int64] { return &r.LeaseMS }),
	fOrder: checked(isText("order", maxShownName, func(r *Request) *Order { return &r.Order }),
		func(r *Request) *Error { return checkOrder(r.Order) }),
	fWeights: isWeights("weights", func(r *Request) *map[string]int64 { return &r.Weights }),
	fLease: presentIf(isText("lease", MaxLease, func(r *Request) *string { return &r.Lease }),
		func(r *Request) bool { return r.Leases == nil }),
	fLeases: checked(isTexts("leases", 1, MaxList, MaxLease, func(r *Request) *[]string { return &r.Leases }),
		checkLeases),
	fResult:  isBytes("result", func(r *Request) *[]byte { return &r.Result }),
	fEnqueue: isList("enqueue", 1, MaxList, jobMessage, func(r *Request) *[]NewJob { return &r.Enqueue }, checkNewJob),
	fClaim: checked(isMap("claim", nextClaimMessage, func(r *Request) *NextClaim { return r.Claim },
		func(r *Request, c *NextClaim) { r.Claim = c }), checkNextClaim),
	fError: checked(isText("error", -1, func(r *Request) *string { return &r.Error }),
		func(r *Request) *Error { r.Error = cut(r.Error, MaxErrorText); return nil }),
	fDead:    isBool("dead", func(r *Request) *bool { return &r.Dead }),
	fSnooze:  isBool("snooze", func(r *Request) *bool { return &r.Snooze }),
	fBind:    isBool("bind", func(r *Request) *bool { return &r.Bind }),
	fRequest: isID("request", func(r *Request) *RequestID { return &r.Cancel }),
	fIDs: checked(isTexts("ids", 1, MaxList, MaxJobID, func(r *Request) *[]string { return &r.IDs }),
		checkIDs),
	fState: checked(isText("state", maxShownName, func(r *Request) *State { return &r.State }), checkState),
	fAfter: checked(isText("after", MaxJobID, func(r *Request) *string { return &r.After }),
		func(r *Request) *Error { return notEmpty("after", r.After) }),
	fAll: isBool("all", func(r *Request) *bool { return &r.All }),
	fText: checked(isText("text", MaxSearchText, func(r *Request) *string { return &r.Text }),
		func(r *Request) *Error { return notEmpty("text", r.Text) }),
	fNewest:     isBool("newest", func(r *Request) *bool { return &r.Newest }),
	fMaxClaimed: isOptInt("max_claimed", 0, MaxMaxClaimed, func(r *Request) *Opt[int64] { return &r.MaxClaimed }),
	fRate: checked(isText("rate", maxShownName, func(r *Request) *string { return &r.Rate }),
		func(r *Request) *Error { _, _, err := ParseRate(r.Rate); return err }),
	fBurst: isOptInt("burst", 0, MaxBurst, func(r *Request) *Opt[int64] { return &r.Burst }),
	fNone:  isBool("none", func(r *Request) *bool { return &r.None }),
	fAfterQueue: checked(isText("after_queue", MaxQueueName, func(r *Request) *string { return &r.AfterQueue }),
		func(r *Request) *Error { return CheckQueueName("after_queue", r.AfterQueue) }),
	fDelete:   isBool("delete", func(r *Request) *bool { return &r.Delete }),
	fSchedule: isDefinition("schedule"),
	fDryRun:   isBool("dry_run", func(r *Request) *bool { return &r.DryRun }),
	fDo: checked(isText("do", maxShownName, func(r *Request) *string { return &r.Do }),
		func(r *Request) *Error { return oneOf("do", r.Do, DoRun, DoPause, DoResume, DoDelete) }),
	fGroup:      ofJob(jobGroup),
	fGroupLimit: isOptInt("group_limit", 0, MaxGroupLimit, func(r *Request) *Opt[int64] { return &r.GroupLimit }),
	fGroupReady: isOptInt("group_ready", 0, MaxGroupLimit, func(r *Request) *Opt[int64] { return &r.GroupReady }),
	fGroupOnFailure: checked(isText("group_on_failure", maxShownName, func(r *Request) *string { return &r.GroupOnFailure }),
		func(r *Request) *Error { return checkGroupOnFailure(r.GroupOnFailure) }),
	fMode: checked(isText("mode", maxShownName, func(r *Request) *string { return &r.Mode }),
		func(r *Request) *Error { return oneOf("mode", r.Mode, WaitAll, WaitAny) }),
	fData:  checked(isBytes("data", func(r *Request) *[]byte { return &r.Data }), checkProgressData),
	fDone:  isOptInt("done", 0, MaxSafeInt, func(r *Request) *Opt[int64] { return &r.Done }),
	fTotal: isOptInt("total", 0, MaxSafeInt, func(r *Request) *Opt[int64] { return &r.Total }),
	fBatch: ofJob(jobBatch),
	fOn: checked(isText("on", maxShownName, func(r *Request) *string { return &r.On }),
		func(r *Request) *Error { return oneOf("on", r.On, OnSuccess, OnFinish) }),
	fStartBefore:   ofJob(jobStartBefore),
	fStartWithinMS: ofJob(jobStartWithinMS),
	fOnExpiry:      ofJob(jobOnExpiry),
	fRetainMS:      ofJob(jobRetainMS),
	fKeyUntil:      ofJob(jobKeyUntil),
	fOnConflict:    ofJob(jobOnConflict),
	fDebounceMaxMS: ofJob(jobDebounceMaxMS),
})

// maxRequestFields bounds the search for the id in a request that is refused.
const maxRequestFields = 64

// request reads a whole request. It continues after a wrong field, because the id can follow.
func (d *decoder) request(r *Request) *Error {
	var seen, present presence
	var first *Error
	unknown := false // first is about a field that no op has
	n := d.src.start()
	for i := 0; d.src.next(i, n); i++ {
		if i == maxRequestFields {
			return Errorf(CodeBadRequest, "the request has more than %d fields", maxRequestFields)
		}
		mark := d.src.mark()
		before := seen
		err := requestMessage.readField(d, r, &seen, &present)
		if err == nil {
			continue
		}
		if first == nil {
			first = err
			unknown = seen == before && strings.HasPrefix(err.Message, noField)
		}
		if d.src.fault() != nil {
			return first
		}
		d.src.resume(mark)
	}
	if err := d.src.end(); err != nil {
		return err
	}
	if s, ok := ops[r.Op]; ok && unknown {
		first = s.unknownField(r.Op, first.Field, seen)
	}
	if err := r.finish(present, first); err != nil {
		return err
	}
	return checkGiven(r, d.given)
}

// finish does the checks that need the whole request. first is the first error of a field. If the
// op is unknown, that error comes first, because it explains more.
func (r *Request) finish(present presence, first *Error) *Error {
	spec, known := ops[r.Op]
	switch {
	case !present.has(fOp):
		if first != nil {
			return first
		}
		return missing("op")
	case first != nil && first.Field == "op":
		return first
	case !known:
		return &Error{Code: CodeUnknownOp, Field: "op", Message: NoSuchOp(r.Op)}
	case first != nil:
		if first.Field == "queue" && !first.Index.Set && spec.takes.has(fQueues) && strings.HasSuffix(first.Message, kindList.String()) {
			first.Message += ": name several in queues"
		}
		return first
	}
	if extra := present &^ (spec.takes | 1<<fID | 1<<fOp); extra != 0 {
		name := firstName(extra)
		return BadField(name, "%s takes no field %q: it takes %s", r.Op, name, spec.fieldList())
	}
	if lack := spec.needs &^ present; lack != 0 {
		return r.lacks(firstName(lack))
	}
	if spec.check == nil {
		return nil
	}
	err := spec.check(r, present)
	if err != nil && err.Field == "ids" && !present.has(fIDs) && r.ID.kind == idText {
		return r.lacks("ids")
	}
	return err
}

// lacks returns the error for a missing field. An id that is a text is probably the id of a job.
func (r *Request) lacks(name string) *Error {
	switch {
	case name == "ids" && r.ID.kind == idText:
		return BadField(name, `ids is missing; id is that of the request: name jobs as in "ids":[%q]`, r.ID.text)
	case name == "state" && r.Op == OpPurge:
		return BadField(name, "state is missing: use ready, blocked, scheduled, done or dead")
	}
	return missing(name)
}

// fieldNames returns the names of the fields that the op takes.
func (s spec) fieldNames() (names []string) {
	for i := range requestMessage.fields {
		if s.takes.has(i) {
			names = append(names, requestMessage.fields[i].name.plain)
		}
	}
	return names
}

func (s spec) fieldList() string { return cmp.Or(strings.Join(s.fieldNames(), ", "), "no fields") }

// unknownField returns the error for a field that no op has, with the fields of this one. It doesn't suggest one that the request has.
func (s spec) unknownField(op Op, name string, seen presence) *Error {
	known := append([]string{"id", "op"}, s.fieldNames()...)
	if near := cmp.Or(otherName(name, known, otherFields), textfmt.Nearest(name, known)); near != "" && !seen.has(requestMessage.index[near].pos) {
		return BadField(name, "%s %q here: did you mean %s?", noField, name, near)
	}
	return BadField(name, "%s %q here: %s takes %s", noField, name, op, s.fieldList())
}

// firstName returns the name of the lowest field in p, which must not be empty.
func firstName(p presence) string {
	for i := range requestMessage.fields {
		if p.has(i) {
			return requestMessage.fields[i].name.plain
		}
	}
	panic("protocol: no field is in the presence")
}

// writeRequest writes the fields that the op takes, in the single or the list form.
func writeRequest(e *encoder, r *Request) {
	w, mask := *r, ops[r.Op].takes|1<<fID|1<<fOp
	if r.Op == OpEnqueue {
		if r.Jobs != nil {
			mask &^= jobFields | 1<<fQueue | 1<<fDelayMS
		}
		if w.Job.Queue != "" {
			w.Queue = w.Job.Queue
		}
		w.DelayMS = w.Job.DelayMS
	}
	switch r.Op {
	case OpPeek:
		w.Job = NewJob{Key: r.Key, Headers: r.Headers}
	case OpCancel:
		w.Job = NewJob{Key: r.Key}
	case OpOpenBatch:
		w.Job.Key = r.Key
	case OpCloseBatch, OpCancelBatch, OpBatches, OpWait:
		w.Job = NewJob{Batch: r.Batch}
	case OpChange:
		w.Job = NewJob{Priority: r.Priority.Value, RunAt: r.RunAt}
	}
	requestMessage.write(e, &w, mask)
}

// CheckQueueName checks that a queue can have the name: 1–128 bytes of [A-Za-z0-9._:/-], not
// starting with . or -. The error is a bad_request for field.
func CheckQueueName(field, name string) *Error {
	if name == "" {
		return BadField(field, "%s: a queue's name is empty", field)
	}
	if len(name) > MaxQueueName {
		return BadField(field, "%s: a queue's name is %d bytes long; at most %d are allowed", field, len(name), MaxQueueName)
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == ':', c == '/':
		case (c == '.' || c == '-') && i > 0:
		default:
			return BadField(field, "%s: %q is not a queue name: use A-Z a-z 0-9 . _ : / - and do not start with . or -", field, name)
		}
	}
	return nil
}

func checkQueues(names []string) *Error {
	for i, q := range names {
		if err := CheckQueueName("queues", q); err != nil {
			err.Index = Some(int64(i))
			return err
		}
	}
	return nil
}

// cut shortens s to at most n bytes of whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) // a clone does not keep the rest of a large text in memory
}
