package adopted

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// txWrite is a write about one job in an open transaction.
type txWrite struct {
	n int // the write's number in the batch
	backends.Write
	proof backends.Lease
	job   *txJob
}

// pick splits a batch into the writes about jobs in the pool, and the rest.
func (t *txPool) pick(b backends.CommitContent) (rest subset, found []txWrite) {
	t.mu.Lock()
	none := len(t.jobs)+len(t.running) == 0
	t.mu.Unlock()
	if none {
		return subset{}, nil
	}
	rest.CommitContent = b.Empty()
	for n, c := range b.Claims {
		rest.addClaim(n, c)
	}
	for n, w := range b.Writes {
		all := backends.LeasesOf(w)
		var others []backends.Lease
		for _, l := range all {
			if j := t.provedBy(l); j != nil {
				found = append(found, txWrite{n, withLeases(w, []backends.Lease{l}), l, j})
			} else {
				others = append(others, l)
			}
		}
		if len(others) > 0 || len(all) == 0 {
			if len(others) < len(all) {
				w = withLeases(w, others)
			}
			rest.addWrite(n, w)
		}
	}
	return rest, found
}

// settleInTx runs the writes at the same time: each is a commit of its own connection. If others wait for them, a write that takes too
// long goes on beside them (see txRun), and its caller tries it alone.
func (s *Store) settleInTx(ctx context.Context, all []txWrite, alone bool, jitter backends.Jitter, res []backends.WriteResult) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, w := range all {
		wg.Go(func() {
			one, slow := s.settleBeside(ctx, w, alone, jitter)
			if slow {
				s.noteSlow(w.job.queue.Queue)
			}
			mu.Lock()
			defer mu.Unlock()
			r := &res[w.n]
			r.Lost = append(r.Lost, one.Lost...)
			r.Failed.AddAll(one.Failed)
			addQueues(&r.MadeReady, one.MadeReady...)
			if one.Stored != nil {
				r.Stored = one.Stored
			}
			r.Err = errors.Join(r.Err, one.Err)
		})
	}
	wg.Wait()
}

// txRun is a write about a job in an open transaction that takes long. A limit would end the transaction, and so lose the claim of a job
// that is done. So it goes on, and the same write that its caller tries again waits for it.
type txRun struct {
	txWrite
	end    context.CancelFunc
	done   chan struct{} // closed when result is set
	result backends.WriteResult
}

func (t *txRun) hasEnded() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// settleBeside is settleJob. If the caller does not try the write alone, it waits until that is slow at most. slow: it took
// too long.
func (s *Store) settleBeside(ctx context.Context, w txWrite, alone bool, jitter backends.Jitter) (r backends.WriteResult, slow bool) {
	late := make(chan struct{})
	inTime := s.whenSlow(func() { close(late) })
	defer func() { slow = !inTime() }()
	run := s.tx.run(w.proof)
	switch {
	case run != nil && alone:
		select {
		case <-run.done:
		case <-ctx.Done():
			run.end()
			<-run.done
		}
		if s.tx.forgetRun(run); reflect.TypeOf(run.Write) == reflect.TypeOf(w.Write) {
			return run.result, false
		}
		return s.settleJob(ctx, w, jitter), false
	case run != nil:
		return backends.WriteResult{Err: errTriedAlone}, false
	case alone:
		return s.settleJob(ctx, w, jitter), false
	}
	inner, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	run = &txRun{txWrite: w, end: end, done: make(chan struct{})}
	s.tx.runs.Go(func() {
		defer close(run.done)
		defer end()
		run.result = s.settleJob(inner, w, jitter)
	})
	select {
	case <-run.done:
		stop()
		return run.result, false
	case <-late:
	}
	if !stop() || !s.tx.addRun(run) { // its time is over, or the pool is closed
		end()
		<-run.done
		return run.result, false
	}
	return backends.WriteResult{Err: errTriedAlone}, false
}

// settleJob runs a write about one job.
func (s *Store) settleJob(ctx context.Context, w txWrite, jitter backends.Jitter) (r backends.WriteResult) {
	s.describeForJobs(ctx, w.Write)
	j := w.job
	j.mu.Lock()
	defer j.mu.Unlock()
	release, isRelease := w.Write.(backends.Release)
	switch _, extend := w.Write.(backends.Extend); {
	case j.ended, release.Owner != 0 && release.Owner != backends.Identity(j.lease.Owner):
		r.Lost = []backends.Lease{w.proof}
		return r
	case extend:
		r.Err = &backends.UnsupportedError{Queue: j.queue.Queue, What: backends.NoExtend, InTx: true}
		return r
	case isRelease && release.Uncounted:
		r.MadeReady = append(s.tx.end(ctx, j), j.queue.Queue)
		r.Failed.Add(j.queue.Queue, release.Cause, false)
		return r
	}
	k := &commitment{s: s, batch: backends.CommitContent{Writes: []backends.Write{w.Write}, Jitter: jitter}, tx: j}
	err := k.split(newAttempt(backends.CommitContent{WaitForLocks: true}))
	if err == nil {
		err = k.run(ctx)
	}
	lost := errors.Is(err, backends.ErrTxLost)
	switch {
	case err == nil:
		r = k.res.Writes[0]
	case isRelease: // the job is free in any case, and the attempt does not count
		r.MadeReady = []string{j.queue.Queue}
		if !lost {
			r.Failed.Add(j.queue.Queue, release.Cause, false)
		}
	case !lost:
		r.Err = err
	}
	if err == nil {
		s.tx.forgetLosses(j.queue.Queue, j.lease.Item, 0)
	}
	if lost {
		r.Lost = []backends.Lease{w.proof}
		s.tx.noteLoss(j)
	}
	if err == nil || isRelease || !j.conn.Open() {
		addQueues(&r.MadeReady, s.tx.end(ctx, j)...)
	}
	return r
}

// reapInTx takes back the jobs in open transactions whose time is over. It returns when that of the
// next one will be; < 0: there is none.
func (s *Store) reapInTx(ctx context.Context, r *backends.MaintenanceResult, jitter backends.Jitter) (next time.Duration) {
	next = -1
	noted := s.tx.takeNoted()
	r.Failed.AddAll(noted)
	for _, f := range noted {
		r.Reaped[f.Cause] += f.Jobs
	}
	for _, j := range s.tx.find(func(j *txJob) bool { return j.timeout > 0 }) {
		left := j.timeout - time.Since(j.began)
		if left > 0 {
			if next < 0 || left < next {
				next = left
			}
			continue
		}
		one := s.release(ctx, j, backends.Release{Cause: backends.CauseTimedOut}, jitter)
		if len(one.Lost) == 0 {
			r.Reaped[backends.CauseTimedOut]++
			r.Failed.AddAll(one.Failed)
		}
		addQueues(&r.MadeReady, one.MadeReady...)
	}
	return next
}

// release takes a job back.
func (s *Store) release(ctx context.Context, j *txJob, how backends.Release, jitter backends.Jitter) backends.WriteResult {
	how.Leases = []backends.Lease{j.lease.Proof()}
	return s.settleJob(ctx, txWrite{Write: how, proof: how.Leases[0], job: j}, jitter)
}

// Heartbeat implements backends.Backend. It also keeps the connections of open transactions alive.
// A last heartbeat, and one with a new identity, rolls transactions back.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	r, err := s.Engine.Heartbeat(ctx, b)
	p := s.tx
	switch {
	case b.Kind == backends.HeartbeatLeave:
		p.rollBack(ctx, p.find(func(*txJob) bool { return true }))
		return r, err
	case b.Kind == backends.HeartbeatJoin && err == nil:
		p.rollBack(ctx, p.find(func(j *txJob) bool { return j.lease.Owner != int64(b.Sidecar) }))
	}
	p.mu.Lock()
	p.idle = b.Timeout
	p.mu.Unlock()
	p.ping(b.Timeout / 3)
	return r, err
}

// Close implements backends.Backend. If another Store shares the open transactions, it waits for
// those on this one's connections.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.slowReap.close()
		s.tx.close(s.Engine)
		s.closeErr = s.Engine.Close()
	})
	return s.closeErr
}
