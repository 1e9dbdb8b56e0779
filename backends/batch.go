package backends

import (
	"context"
	"fmt"
	"time"
)

// Batcher is a Backend that keeps batches: jobs with a common end. They are in the database, so that all sidecars agree.
//
// A job with NewJob.Batch is a member. When a batch is closed and no member is unfinished, one transaction stores the callback, a
// job, and ends the batch. Members that were deleted, or made dead by any cause, count as failed. A dead job that is retried is a
// member as before.
type Batcher interface {
	// OpenBatch stores a batch. If Key belongs to a batch of the queue already, the result is that batch, and existing is true.
	// The error is a *BatchError if the callback's batch can't get more members.
	OpenBatch(ctx context.Context, b NewBatch) (id string, existing bool, err error)

	// CloseBatch ends the time in which any producer can add jobs. It does nothing if the batch is closed, or has ended. The
	// error is a *BatchError if the queue has no such batch. The caller calls ResolveBatches with it soon.
	CloseBatch(ctx context.Context, queue, id string) error

	// CancelBatch ends a batch without its callback, and cancels its jobs and the batches whose callbacks are its members. It
	// does nothing if the batch has ended. The error is a *BatchError if the queue has no such batch. If the call fails while it
	// cancels jobs, ResolveBatches continues.
	CancelBatch(ctx context.Context, c BatchCancel) (CancelledBatch, error)

	// Batches returns batches by id.
	Batches(ctx context.Context, l BatchList) ([]Batch, error)

	// ResolveBatches ends those of the batches that can end. With nil it finds them: those with members that ended, and a part
	// of all others, call by call. Then it also continues with the cancels that were interrupted, and deletes what expired. Any
	// number of sidecars can call it at the same time. A callback that the database refuses doesn't stop the others.
	ResolveBatches(ctx context.Context, ids []string) (ResolvedBatches, error)
}

// BatchCondition is when a closed batch stores its callback.
type BatchCondition string

// The conditions of batches.
const (
	OnSuccess BatchCondition = "success" // all members are done
	OnFinish  BatchCondition = "finish"  // no member is unfinished
)

// NewBatch is a batch to store. Callback.Batch is the batch of which the callback is a member. It has neither a key nor a time.
type NewBatch struct {
	On       BatchCondition
	Callback NewJob
	Key      string        // empty: none
	Expire   time.Duration // a batch that has not ended is deleted after this time
}

// BatchState is the state of a batch.
type BatchState string

// The states of batches.
const (
	BatchOpen       BatchState = "open"       // any producer can add jobs
	BatchClosed     BatchState = "closed"     // while a member is claimed, jobs can be added
	BatchEnded      BatchState = "ended"      // its callback is stored
	BatchCancelling BatchState = "cancelling" // its jobs are being cancelled
	BatchCancelled  BatchState = "cancelled"  // it ended without its callback
)

// Ended reports whether a batch has ended.
func (b BatchState) Ended() bool { return b == BatchEnded || b == BatchCancelled }

// Batch is a batch as Batches returns it.
type Batch struct {
	ID     string
	Queue  string // of the callback
	On     BatchCondition
	Key    string
	Parent string // the batch of which the callback is a member
	State  BatchState

	CreatedAt time.Time
	ClosedAt  time.Time // zero: it was not closed
	EndedAt   time.Time // zero: it has not ended
	ExpiresAt time.Time // when it is deleted

	// Its members. Left are those that are unfinished.
	Done, Failed, Left int64

	Callback string // the id of the callback's job; empty: it is not stored

	// Of BatchList.ID alone: the callback's payload, and members that are not done, at most BatchJobs.
	Payload []byte
	Jobs    []BatchJob
}

// BatchJob is a member of a batch.
type BatchJob struct {
	ID    string
	Queue string // empty: the job is gone
	State State
	Batch string // not empty: the member is the callback of this batch, which isn't stored yet. ID is empty
}

// BatchList selects batches.
type BatchList struct {
	Queue  string   // of the callbacks; empty: all queues
	ID     string   // this batch alone, with its jobs
	States []string // ids of batches, of which the results have only the ids, the states and the callbacks
	Active bool     // only batches that have not ended
	After  string   // only those behind this id
	Max    int
}

// BatchCancel names a batch to cancel.
type BatchCancel struct {
	Queue, ID  string
	RetainDead func(queue string) time.Duration // see Command.RetainDead

	// Cancelled is called after each transaction that cancelled jobs, also if a later one fails. nil: nothing.
	Cancelled func(CancelledJobs)
}

// CancelledJobs are jobs of a batch, of one queue, that one transaction cancelled.
type CancelledJobs struct {
	Queue   string
	IDs     []string        // that were unfinished before
	Jobs    int64           // of these, that it cancelled
	Claims  []Token         // see Command.Ended
	Pending []StoredPending // see Command.Pending
	Freed   bool            // others of the queue are ready
}

// CancelledBatch is what a CancelBatch did.
type CancelledBatch struct {
	State BatchState // of the batch now
	Jobs  int64      // that it cancelled
}

// ResolvedBatches is what a call of ResolveBatches did.
type ResolvedBatches struct {
	Ended   []Batch  // without their jobs
	Expired []Batch  // those that had not ended
	Ready   []string // the queues of the callbacks
	More    bool     // others can possibly end: call again at once
}

const (
	// EndedBatchKept is how long a batch is kept after its end. As long as that its key belongs to it.
	EndedBatchKept = 7 * 24 * time.Hour
	// MaxBatchPayload is the most bytes of a callback's payload.
	MaxBatchPayload = 64 << 10
	// BatchJobs is how many jobs Batch.Jobs has at most.
	BatchJobs = 100
)

// Headers of jobs.
const (
	BatchHeader       = "qsidecar-batch"        // of a member: the batch
	CallbackHeader    = "qsidecar-callback-of"  // of a callback: the batch
	BatchDoneHeader   = "qsidecar-batch-done"   // of a callback: how many members were done
	BatchFailedHeader = "qsidecar-batch-failed" // of a callback: how many were not
)

// BatchError means that a batch doesn't exist, or that it can't get more members. Nothing was changed.
type BatchError struct {
	Batch string
	State BatchState // empty: it doesn't exist
}

// Error implements error.
func (e *BatchError) Error() string {
	switch e.State {
	case "":
		return fmt.Sprintf("there is no batch %q: it was never opened in the database of this queue, or it ended or expired long ago", e.Batch)
	case BatchClosed:
		return fmt.Sprintf("the batch %s is closed, and no worker has one of its jobs: add jobs before you close it, or from a worker that has one", e.Batch)
	case BatchEnded:
		return fmt.Sprintf("the batch %s has ended: its callback is stored", e.Batch)
	}
	return fmt.Sprintf("the batch %s is cancelled", e.Batch)
}
