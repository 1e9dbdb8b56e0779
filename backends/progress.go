package backends

import (
	"context"
	"errors"
	"time"
)

// MaxProgressData is the largest Progress.Data, in bytes.
const MaxProgressData = 4 << 10

// Progress is how far the worker of a job was when it last reported it.
type Progress struct {
	Done, Total int64  // negative: not reported
	Data        []byte // empty: none
	At          time.Time
}

// LeaseProgress is the progress of a claimed job.
type LeaseProgress struct {
	Lease    Lease
	Progress Progress // At has no meaning
}

// ProgressOutcome is what became of a LeaseProgress.
type ProgressOutcome int

// The outcomes.
const (
	ProgressSaved  ProgressOutcome = iota
	ProgressLost                   // the lease is not valid
	ProgressLocked                 // another transaction has locked the job's row: try again
)

// ProgressKeeper is a Backend that keeps the progress of jobs, if Info.Progress is true. Jobs of adopted tables have none.
//
// Progress is in a table of its own, so that an outage of that table stops nothing else. The row of a job has a mark from its
// first progress on. So a claim of a job without progress doesn't read the table.
type ProgressKeeper interface {
	// SaveProgress stores the progress of jobs, each in place of what an earlier call stored, and returns the outcome of each.
	// A claim of one that was saved has Job.HasProgress from then on.
	SaveProgress(ctx context.Context, all []LeaseProgress) ([]ProgressOutcome, error)

	// ProgressOf returns the progress of jobs, by their ids.
	ProgressOf(ctx context.Context, ids []string) (map[string]Progress, error)

	// ForgetProgress deletes the progress of those of the jobs that have ended.
	ForgetProgress(ctx context.Context, ids []string) error

	// ProgressJobs returns at most limit ids of jobs that have progress, after one of them; empty: from the start.
	ProgressJobs(ctx context.Context, after string, limit int) ([]string, error)
}

// ErrNoProgress means that an engine doesn't keep the progress of jobs.
var ErrNoProgress = errors.New("this database doesn't keep the progress of jobs")
