package protocol

import "math"

// MaxBatchID is the most bytes of a batch's id.
const MaxBatchID = 32

// The values of the field "on" of open_batch.
const (
	OnSuccess = "success" // all jobs of the batch are done
	OnFinish  = "finish"  // all have ended
)

// Batch is a batch. The replies to open_batch and wait have a part of it.
type Batch struct {
	ID        string
	Duplicate bool   // open_batch: the key belongs to this batch, which was opened before
	Queue     string // of the callback
	On        string
	Key       string
	Parent    string // the batch of which the callback is a member
	State     string // open, closed, ended, cancelling or cancelled

	CreatedAt Opt[int64]
	ClosedAt  Opt[int64]
	EndedAt   Opt[int64]
	ExpiresAt Opt[int64] // when it is deleted

	// Its jobs.
	Done   Opt[int64]
	Failed Opt[int64]
	Left   Opt[int64]

	Callback string // the id of the callback's job

	// Of the batch that a request names: the callback's payload, and jobs that are not done.
	Payload []byte
	Jobs    []BatchJob
}

// BatchJob is a member of a batch.
type BatchJob struct {
	ID    string
	Queue string
	State State
	Batch string // instead of the others: the member is the callback of this batch, which isn't stored yet
}

var batchJobMessage = newMessage([]field[BatchJob]{
	isOptWord("id", func(j *BatchJob) *string { return &j.ID }),
	isOptWord("queue", func(j *BatchJob) *string { return &j.Queue }),
	isWord("state", func(j *BatchJob) *State { return &j.State }),
	isOptWord("batch", func(j *BatchJob) *string { return &j.Batch }),
})

var batchMessage = newMessage([]field[Batch]{
	isWord("id", func(b *Batch) *string { return &b.ID }),
	isBool("duplicate", func(b *Batch) *bool { return &b.Duplicate }),
	isOptWord("queue", func(b *Batch) *string { return &b.Queue }),
	isOptWord("on", func(b *Batch) *string { return &b.On }),
	isOptWord("key", func(b *Batch) *string { return &b.Key }),
	isOptWord("parent", func(b *Batch) *string { return &b.Parent }),
	isOptWord("state", func(b *Batch) *string { return &b.State }),
	optNumber("created_at", func(b *Batch) *Opt[int64] { return &b.CreatedAt }),
	optNumber("closed_at", func(b *Batch) *Opt[int64] { return &b.ClosedAt }),
	optNumber("ended_at", func(b *Batch) *Opt[int64] { return &b.EndedAt }),
	optNumber("expires_at", func(b *Batch) *Opt[int64] { return &b.ExpiresAt }),
	optNumber("done", func(b *Batch) *Opt[int64] { return &b.Done }),
	optNumber("failed", func(b *Batch) *Opt[int64] { return &b.Failed }),
	optNumber("left", func(b *Batch) *Opt[int64] { return &b.Left }),
	isOptWord("callback", func(b *Batch) *string { return &b.Callback }),
	isBytes("payload", func(b *Batch) *[]byte { return &b.Payload }),
	isList("jobs", 0, math.MaxInt, batchJobMessage, func(b *Batch) *[]BatchJob { return &b.Jobs }, needs(batchJobMessage, "state")),
})

func checkBatchID(id string) *Error { return notEmpty("batch", id) }

// checkOpenBatch checks the callback, which is in Request.Job. Its queue is in Request.Queue too.
func checkOpenBatch(r *Request, _ presence) *Error {
	r.Job.Queue = r.Queue
	r.Key, r.Job.Key = r.Job.Key, ""
	return nil
}

// checkOneBatch moves the batch from Request.Job, where the fields of enqueue are.
func checkOneBatch(r *Request, _ presence) *Error {
	r.Batch, r.Job = r.Job.Batch, NewJob{}
	return nil
}

func checkBatches(r *Request, p presence) *Error {
	if p.has(fBatch) && (p.has(fAfter) || p.has(fMax)) {
		return BadField("batch", "batch and %s exclude each other", firstName(p&bits(fAfter, fMax)))
	}
	return checkOneBatch(r, p)
}

func checkWait(r *Request, p presence) *Error {
	switch {
	case p.has(fBatch) && p.has(fIDs):
		return BadField("batch", "ids and batch exclude each other")
	case p.has(fBatch) && p.has(fMode):
		return BadField("mode", "mode goes with ids, not with batch")
	case !p.has(fBatch) && !p.has(fIDs):
		return BadField("ids", "ids is missing; name jobs by ids, or a batch")
	}
	return checkOneBatch(r, p)
}
