package protocol

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// spec lists the fields that an op takes and needs, besides op and id.
type spec struct {
	takes presence
	needs presence
	given presence // what its schedule takes
	check func(r *Request, p presence) *Error
}

func bits(positions ...int) (p presence) {
	for _, pos := range positions {
		p |= 1 << pos
	}
	return p
}

// ops is the table of all operations. An op that it does not contain is unknown.
var ops = map[Op]spec{
	OpHello: {takes: bits(fVersion, fWorker, fEvents)},
	OpEnqueue: {
		takes: bits(fQueue, fPayload, fPriority, fDelayMS, fRunAt, fKey, fGroup, fHeaders, fMaxAttempts, fTimeoutMS, fJobs, fBatch, fStartBefore, fStartWithinMS, fOnExpiry, fRetainMS, fKeyUntil, fOnConflict, fDebounceMaxMS),
		check: checkEnqueue,
	},
	OpClaim:       {takes: bits(fQueue, fQueues, fMax, fWaitMS, fLeaseMS, fOrder, fWeights), check: checkClaim},
	OpAck:         {takes: bits(fLease, fLeases, fResult, fEnqueue, fClaim), check: checkAck},
	OpNack:        {takes: bits(fLease, fLeases, fError, fDelayMS, fDead, fSnooze, fClaim), check: oneOrMany},
	OpExtend:      {takes: bits(fLease, fLeases, fLeaseMS, fBind), check: checkExtend},
	OpCancelClaim: {takes: bits(fRequest)},
	OpBye:         {},
	OpStats:       {takes: bits(fQueue)},
	OpPeek:        {takes: bits(fQueue, fIDs, fState, fMax, fAfter, fKey, fHeaders, fText, fError, fNewest, fAfterQueue), check: checkPeek},
	OpRetry:       {takes: bits(fQueue, fIDs, fAll), needs: bits(fQueue), check: checkRetry},
	OpChange:      {takes: bits(fQueue, fIDs, fPriority, fDelayMS, fRunAt), needs: bits(fQueue, fIDs), check: checkChange},
	OpDelete:      {takes: bits(fQueue, fIDs), needs: bits(fQueue, fIDs)},
	OpReclaim: {
		takes: bits(fQueue, fIDs), needs: bits(fQueue, fIDs),
	},
	OpCancel:         {takes: bits(fQueue, fIDs, fKey, fDelete), needs: bits(fQueue), check: checkCancel},
	OpPurge:          {takes: bits(fQueue, fState), needs: bits(fQueue, fState), check: checkPurge},
	OpPause:          {takes: bits(fQueue), needs: bits(fQueue)},
	OpResume:         {takes: bits(fQueue), needs: bits(fQueue)},
	OpLimit:          {takes: bits(fQueue, fMaxClaimed, fRate, fBurst, fNone, fGroupLimit, fGroupOnFailure, fGroupReady), needs: bits(fQueue), check: checkLimit},
	OpSchedules:      {takes: bits(fQueue, fSchedule, fAfter, fMax), given: bits(sName), check: checkSchedules},
	OpSchedule:       {takes: bits(fQueue, fSchedule, fDryRun), needs: bits(fQueue, fSchedule), given: everything, check: checkSchedule},
	OpChangeSchedule: {takes: bits(fQueue, fSchedule, fDo), needs: bits(fQueue, fSchedule, fDo), given: bits(sName, sSource, sVersion), check: checkChangeSchedule},
	OpOpenBatch: {
		takes: bits(fQueue, fOn, fPayload, fPriority, fKey, fGroup, fHeaders, fMaxAttempts, fTimeoutMS, fBatch), needs: bits(fQueue, fOn), check: checkOpenBatch,
	},
	OpCloseBatch:  {takes: bits(fQueue, fBatch), needs: bits(fQueue, fBatch), check: checkOneBatch},
	OpCancelBatch: {takes: bits(fQueue, fBatch), needs: bits(fQueue, fBatch), check: checkOneBatch},
	OpBatches:     {takes: bits(fQueue, fBatch, fAfter, fMax, fAll), check: checkBatches},
	OpWatch:       {takes: bits(fQueue, fWaitMS)},
	OpWait:        {takes: bits(fQueue, fIDs, fMode, fWaitMS, fBatch), needs: bits(fQueue), check: checkWait},
	OpProgress:    {takes: bits(fLease, fData, fDone, fTotal), needs: bits(fLease), check: checkProgress},
	OpPing:        {},
	OpReload:      {},
	OpStatus:      {},
	OpConfig:      {},
	OpFleet:       {},
	OpHistory:     {takes: bits(fQueue)},
	OpCheck:       {},
}

// Known reports whether op is an operation of this version.
func Known(op Op) bool {
	_, ok := ops[op]
	return ok
}

// NoSuchOp is the text of the error for an unknown op.
func NoSuchOp(op Op) string {
	return fmt.Sprintf("there is no op %q%s", op, didYouMean(string(op), ops, otherOps))
}

// otherOps are the names of ops in other programs. The commands of qsidecar have more.
var otherOps = map[string][]string{
	"enqueue": {"push", "add", "put", "send", "submit", "publish"},
	"claim":   {"pop", "reserve", "take", "get", "fetch", "dequeue", "receive"},
	"ack":     {"done", "complete", "finish", "success"},
	"nack":    {"fail", "reject", "release", "bury", "failure"},
	"extend":  {"touch", "renew", "heartbeat"},
	"peek":    {"jobs", "list"},
	"retry":   {"requeue", "redrive", "kick"},
	"purge":   {"clear", "flush", "empty"},
}

// otherFields are the names of fields in other programs.
var otherFields = map[string][]string{
	"op":           {"method", "action", "command", "cmd", "operation"},
	"queue":        {"topic", "channel", "tube", "queue_name"},
	"payload":      {"body", "data", "message", "args", "content"},
	"max_attempts": {"max_retries", "retries", "tries", "attempts"},
	"run_at":       {"eta", "scheduled_at", "start_at", "not_before"},
	"key":          {"unique_key", "idempotency_key", "dedupe_key", "job_id"},
	"max":          {"limit", "count", "batch_size"},
	"done":         {"percent", "progress", "current"},
	"max_claimed":  {"concurrency", "max_concurrency", "max_running"},
}

// otherName returns the one of the known names that another program calls name, or "".
func otherName(name string, known []string, others map[string][]string) string {
	for _, k := range known {
		if slices.Contains(others[k], name) {
			return k
		}
	}
	return ""
}

// DidYouMean suggests the one of the known fields that name is probably meant for. Otherwise it returns "".
func DidYouMean(name string, known []string) string {
	if near := cmp.Or(otherName(name, known, otherFields), textfmt.Nearest(name, known)); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}

// didYouMean suggests the known name that name is probably a typing error of, or that is called name in other programs.
func didYouMean[K ~string, V any](name string, known map[K]V, others map[string][]string) string {
	var names []string
	for _, k := range slices.Sorted(maps.Keys(known)) {
		names = append(names, string(k))
	}
	if near := cmp.Or(otherName(name, names, others), textfmt.Nearest(name, names)); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}

// checkEnqueue moves the queue and delay of the single form to Request.Job.
func checkEnqueue(r *Request, p presence) *Error {
	if p.has(fJobs) {
		if both := p & (jobFields | bits(fQueue, fDelayMS)); both != 0 {
			name := firstName(both)
			return BadField(name, "%s must be in each element of jobs, not beside jobs", name)
		}
		return nil
	}
	if !p.has(fQueue) {
		return missing("queue")
	}
	r.Job.Queue, r.Job.DelayMS = r.Queue, r.DelayMS
	r.DelayMS = Opt[int64]{}
	return checkNewJob(&r.Job, p)
}

func checkClaim(r *Request, p presence) *Error {
	if p.has(fQueue) && p.has(fQueues) {
		return BadField("queues", "queue and queues exclude each other")
	}
	if !p.has(fQueue) && !p.has(fQueues) {
		return missing("queue")
	}
	return checkWeights(r.Weights, r.Order, r.Queue, r.Queues)
}

// checkWeights checks the weights of a claim against its other fields.
func checkWeights(w map[string]int64, order Order, queue string, queues []string) *Error {
	if w == nil {
		return nil
	}
	if order != OrderRotate {
		return BadField("weights", "weights goes with the order rotate: set order to it, or leave weights out")
	}
	others := maps.Clone(w)
	delete(others, queue)
	for _, q := range queues {
		delete(others, q)
	}
	for _, q := range slices.Sorted(maps.Keys(others)) {
		return BadField("weights", "weights has the queue %q, which the claim doesn't name: add it to queues, or leave it out", q)
	}
	return nil
}

func checkOrder(o Order) *Error {
	if o == OrderStrict || o == OrderRotate {
		return nil
	}
	return BadField("order", "order must be strict or rotate")
}

func oneOrMany(_ *Request, p presence) *Error {
	if p.has(fLease) && p.has(fLeases) {
		return BadField("leases", "lease and leases exclude each other")
	}
	if !p.has(fLease) && !p.has(fLeases) {
		return missing("lease")
	}
	return nil
}

func checkAck(r *Request, p presence) *Error {
	if err := oneOrMany(r, p); err != nil {
		return err
	}
	if with := p & bits(fResult, fEnqueue); with != 0 && p.has(fLeases) {
		name := firstName(with)
		return BadField(name, "%s goes with a single lease, not with leases", name)
	}
	return nil
}

func checkExtend(r *Request, p presence) *Error {
	if err := oneOrMany(r, p); err != nil {
		return err
	}
	if p.has(fLeaseMS) && r.Bind {
		return BadField("lease_ms", "lease_ms and bind exclude each other: a lease bound to a connection has no time")
	}
	return nil
}

// checkPeek moves the key and the headers from Request.Job, where the fields of enqueue are.
func checkPeek(r *Request, p presence) *Error {
	r.Key, r.Headers, r.Job = r.Job.Key, r.Job.Headers, NewJob{}
	if with := p & bits(fState, fMax, fAfter, fKey, fHeaders, fText, fError, fNewest, fAfterQueue); with != 0 && p.has(fIDs) {
		name := firstName(with)
		return BadField(name, "ids and %s exclude each other: ids are shown in any state, all of them", name)
	}
	if with := p & bits(fMax, fAfter, fHeaders, fText, fError); with != 0 && p.has(fKey) && !p.has(fState) {
		name := firstName(with)
		return BadField(name, "%s needs a state beside key: without a state, key finds one job", name)
	}
	if r.Newest && r.State != StateDead && r.State != StateDone {
		return BadField("newest", "newest needs the state dead or done: other jobs have no time at which they finished")
	}
	if p.has(fHeaders) && len(r.Headers) == 0 {
		return BadField("headers", "headers is empty; leave it out for none")
	}
	if p.has(fError) && (r.Error == "" || len(r.Error) > MaxSearchText) {
		return BadField("error", "error must have 1 to %d bytes: a part of the messages of failed attempts", MaxSearchText)
	}
	searches := p&bits(fKey, fHeaders, fText, fError) != 0
	switch {
	case p.has(fAfterQueue) && (p.has(fQueue) || !searches):
		return BadField("after_queue", "after_queue belongs to a search of all queues, without queue")
	case p.has(fAfter) && !p.has(fQueue) && !p.has(fAfterQueue):
		return BadField("after", "after needs a queue: name the job's queue, in a search of all queues as after_queue")
	}
	return nil
}

// checkCancel moves the key from Request.Job, where the fields of enqueue are.
func checkCancel(r *Request, p presence) *Error {
	r.Key, r.Job = r.Job.Key, NewJob{}
	if p.has(fIDs) && p.has(fKey) {
		return BadField("key", "ids and key exclude each other")
	}
	if !p.has(fIDs) && !p.has(fKey) {
		return BadField("ids", "ids is missing; name jobs by ids, or one by its key")
	}
	return nil
}

func checkProgress(_ *Request, p presence) *Error {
	if p&bits(fData, fDone, fTotal) == 0 {
		return BadField("done", "done, total and data are missing: name how far the job is")
	}
	return nil
}

func checkProgressData(r *Request) *Error {
	if n := len(r.Data); n > MaxProgressData {
		return BadField("data", "data is %d bytes long; at most %d are allowed", n, MaxProgressData)
	}
	return nil
}

func checkRetry(r *Request, p presence) *Error {
	if p.has(fIDs) && r.All {
		return BadField("all", "ids and all exclude each other")
	}
	if !p.has(fIDs) && !r.All {
		return BadField("ids", "ids is missing; set all: true to retry every dead job")
	}
	return nil
}

// checkChange moves the priority and the time from Request.Job, where the fields of enqueue are.
func checkChange(r *Request, p presence) *Error {
	r.RunAt = r.Job.RunAt
	if p.has(fPriority) {
		r.Priority = Some(r.Job.Priority)
	}
	r.Job = NewJob{}
	switch {
	case r.DelayMS.Set && r.RunAt.Set:
		return BadField("run_at", "delay_ms and run_at exclude each other")
	case !r.Priority.Set && !r.DelayMS.Set && !r.RunAt.Set:
		return BadField("priority", "priority, delay_ms and run_at are missing: name what to change")
	}
	return nil
}

// ParseRate reads a rate such as 100/s. 0 means no rate.
func ParseRate(text string) (jobs int64, per time.Duration, err *Error) {
	if text == "0" {
		return 0, 0, nil
	}
	number, unit, _ := strings.Cut(text, "/")
	per = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[unit]
	jobs, bad := strconv.ParseInt(number, 10, 64)
	if bad != nil || per == 0 || jobs < 1 || jobs > MaxRate {
		return 0, 0, BadField("rate", "the rate %q isn't one: use 1 to %d jobs in a second, a minute or an hour, such as 100/s, 30/m or 5/h, or 0 for no rate", text, MaxRate)
	}
	return jobs, per, nil
}

func checkLimit(r *Request, p presence) *Error {
	if p&bits(fMaxClaimed, fRate, fBurst, fNone, fGroupLimit, fGroupOnFailure, fGroupReady) == 0 {
		return BadField("max_claimed", "max_claimed, rate, burst, group_limit, group_on_failure, group_ready and none are missing: name what to change")
	}
	return nil
}

// What a failed job of a group does during its back-off.
const (
	GroupHold = "hold"
	GroupSkip = "skip"
)

func checkGroupOnFailure(text string) *Error {
	if text != GroupHold && text != GroupSkip {
		return BadField("group_on_failure", "group_on_failure must be %s or %s", GroupHold, GroupSkip)
	}
	return nil
}

func checkPurge(r *Request, _ presence) *Error {
	if r.State == StateClaimed {
		return BadField("state", "claimed jobs cannot be purged: reclaim them first")
	}
	return nil
}

func checkState(r *Request) *Error {
	switch r.State {
	case StateReady, StateBlocked, StateScheduled, StateClaimed, StateDone, StateDead:
		return nil
	}
	return BadField("state", "state must be ready, blocked, scheduled, claimed, done or dead")
}

// The events that hello can ask for.
const (
	EventLost     = "lost"     // leases of this connection were lost
	EventDraining = "draining" // the server is about to stop
)

func checkEvents(r *Request) *Error {
	for i, e := range r.Events {
		if e != EventLost && e != EventDraining {
			return atIndex(i, BadField("events", "events[%d]: there is no event %q; there are lost and draining", i, e))
		}
	}
	return nil
}

func checkIDs(r *Request) *Error {
	for i, id := range r.IDs {
		if id == "" {
			return atIndex(i, BadField("ids", "ids[%d]: a job's id is not empty", i))
		}
	}
	return nil
}

// checkLeases rejects a lease that is listed twice, because the result of the second would depend
// on the first.
func checkLeases(r *Request) *Error {
	seen := make(map[string]int, len(r.Leases))
	for i, l := range r.Leases {
		if j, dup := seen[l]; dup {
			return atIndex(i, BadField("leases", "leases[%d]: this lease is a duplicate of leases[%d]", i, j))
		}
		seen[l] = i
	}
	return nil
}

func atIndex(i int, err *Error) *Error {
	err.Index = Some(int64(i))
	return err
}

// String returns the id for messages and logs.
func (r RequestID) String() string {
	switch r.kind {
	case idNumber:
		return fmt.Sprint(r.num)
	case idText:
		return fmt.Sprintf("%q", r.text)
	default:
		return "none"
	}
}
