package pipeline

import (
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/fairshare"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// PendingWrite is a write on its way to a commit.
type PendingWrite struct {
	write    backends.Write
	session  *quota.Session // session that waits for it; nil: none
	received time.Time      // when its request arrived; zero: not known
	pushed   time.Time      // of a Deliver
	position uint64         // grows in the order of push
	price    int64
	room     *semaphore.Weighted // memory that the price is reserved from; nil: none
	size     size
	state    state          // executor.mu guards it
	onEnd    func(Outcome)  // called at the end of the write; can be nil
	onTry    func()         // called when its first commit has ended, even if it must be tried again; nil: never, or no more
	runs     []lease.Run    // of a settle, or of the release of a session: what the lease table has about each lease
	holder   *quota.Session // of a Release: the session that held the jobs; nil: no worker had them
	aside    bool           // its next commit has no writes of others: the database refused it before
	Done     chan Outcome   // capacity 1: the commit loop never waits for a reader
}

// state is where a write is on its way to its outcome. Its methods are all transitions:
//
//	           take                     finish
//	queued ───────────► committing ───────────────► outcome
//	  │  ▲ ▲             │  │    │ expire
//	  │  │ └── putBack ──┘  │    ▼
//	  │  └──── set aside ───┘  overdue ── finish ──► outcome
//	  │ expire
//	  ▼
//	abandoned: the end of the wait is the outcome
//
// A write that was set aside is queued, too, but with the locked ones (see scheduler.setAside).
type state uint8

const (
	queued     state = iota // no commit has it
	committing              // a commit has it, or it has its outcome
	abandoned               // no session waits: no commit takes it any more
	overdue                 // a commit has it, and it must not be tried again
)

// take gives a queued write to a commit. It returns false if no session waits for the write.
func (s *state) take() bool {
	if *s != queued {
		return false
	}
	*s = committing
	return true
}

// putBack queues a write again whose commit failed. It returns false if the time of the write is over.
func (s *state) putBack() bool {
	if *s != committing {
		return false
	}
	*s = queued
	return true
}

// expire ends the time of a write. It returns true if no commit has the write. Otherwise the commit answers it.
func (s *state) expire() bool {
	if *s == queued {
		*s = abandoned
		return true
	}
	*s = overdue
	return false
}

// unseen reports whether the write is a release of jobs that no worker had.
func (p *PendingWrite) unseen() bool {
	_, release := p.write.(backends.Release)
	return release && p.holder == nil
}

// run returns the counters and the run time of the write's lease, as metrics.RunOf does.
func (p *PendingWrite) run(lease int) (queue *metrics.Queue, took time.Duration) {
	if lease >= len(p.runs) {
		return nil, -1
	}
	return p.runs[lease].Counters, p.runs[lease].Took
}

// size is what a write adds to a batch.
type size struct {
	jobs    int
	settled int // of jobs
	bytes   int64
}

func (s size) units() int { return fairshare.Units(s.jobs, s.bytes) }

// Outcome is the result of a PendingWrite.
type Outcome struct {
	Result backends.WriteResult
	Err    error
}

// current returns the write as of now: the time limits of jobs go on while the record of their hand-outs waits for a commit.
func (p *PendingWrite) current() backends.Write {
	d, ok := p.write.(backends.Deliver)
	if !ok {
		return p.write
	}
	d.Deliveries = slices.Clone(d.Deliveries)
	for i := range d.Deliveries {
		d.Deliveries[i].Ago += time.Since(p.pushed)
	}
	return d
}

// endTry calls onTry after the first commit of the write.
func (p *PendingWrite) endTry() {
	if f := p.onTry; f != nil {
		p.onTry = nil
		f()
	}
}

func sizeOf(w backends.Write) size {
	n := len(backends.LeasesOf(w))
	s := size{jobs: n, settled: n}
	add := func(jobs []backends.NewJob) {
		s.jobs += len(jobs)
		for i := range jobs {
			s.bytes += int64(len(jobs[i].Payload) + len(jobs[i].Key) + len(jobs[i].Group))
			for name, value := range jobs[i].Headers {
				s.bytes += int64(len(name) + len(value))
			}
		}
	}
	switch w := w.(type) {
	case backends.Enqueue:
		add(w.Jobs)
	case backends.Ack:
		add(w.Enqueue)
		s.bytes += int64(len(w.Result))
	case backends.Nack:
		s.bytes += int64(len(w.Error))
	}
	return s
}

// newJobs returns the jobs that the write stores.
func newJobs(w backends.Write) []backends.NewJob {
	switch w := w.(type) {
	case backends.Enqueue:
		return w.Jobs
	case backends.Ack:
		return w.Enqueue
	}
	return nil
}

// isReady reports whether a claim in the same commit can get the job. One of a group is admitted after the commit.
func isReady(j *backends.NewJob) bool { return j.Delay == 0 && j.RunAt.IsZero() && j.Group == "" }

// readyQueues lists the queues for which the write has ready jobs.
func readyQueues(w backends.Write) (out []string) {
	jobs := newJobs(w)
	for i := range jobs {
		if q := jobs[i].Queue; isReady(&jobs[i]) && (len(out) == 0 || out[len(out)-1] != q) {
			out = append(out, q)
		}
	}
	if len(out) > 1 {
		slices.Sort(out)
		out = slices.Compact(out)
	}
	return out
}

// readyJobs returns how many jobs the write can make ready.
func readyJobs(w backends.Write) (n int) {
	switch w.(type) {
	case backends.Enqueue, backends.Ack:
		jobs := newJobs(w)
		for i := range jobs {
			if isReady(&jobs[i]) {
				n++
			}
		}
		return n
	}
	return len(backends.LeasesOf(w))
}
