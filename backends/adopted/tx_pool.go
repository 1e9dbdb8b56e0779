package adopted

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// DefaultMaxTransactions is the default of how many jobs a Store claims in open transactions at a time.
const DefaultMaxTransactions = 16

// closeTimeout bounds the last messages to servers, which notice a closed connection without them.
const closeTimeout = 2 * time.Second

// txPool has the connections of jobs that are claimed in open transactions: one for each. The
// database does not show whose they are. A row that is locked and not in here is locked by another
// program.
type txPool struct {
	mu      sync.Mutex
	max     int
	idle    time.Duration         // after which a server ends a silent connection
	used    int                   // connections with a job, or reserved for one
	free    []txConn              // connections without a job
	jobs    map[int64]*txJob      // by the lease's id
	waiting []string              // queues for which there was no connection
	lost    map[lostKey]int       // how often in a row a job's connection was lost, as far as that isn't counted in its row
	noted   backends.FailedCounts // losses that no result reported yet
	closed  bool
	pings   sync.WaitGroup
	running map[backends.Lease]*txRun // writes that others did not wait for
	runs    sync.WaitGroup

	stores int        // that share the pool; see Succeed
	ended  *sync.Cond // broadcasts the end of each job
}

// lostKey identifies a job.
type lostKey struct{ queue, item string }

// maxLost bounds the memory for jobs that other consumers end.
const maxLost = 10_000

// freeLosses is how many losses in a row use up no attempt: a failover ends all transactions, and no job is the reason.
const freeLosses = 1

// txConn is a connection, and the engine that opened it.
type txConn struct {
	backends.OpenTx
	engine backends.Adopter
}

// txJob is a job, and the connection whose open transaction locks its row.
type txJob struct {
	mu      sync.Mutex // of the connection, which one caller uses at a time
	conn    txConn
	queue   *statement.Queue
	lease   *lease.Lease
	began   time.Time // by this host's clock
	timeout time.Duration
	ended   bool // the connection is no longer the job's
}

func newTxPool() *txPool {
	p := &txPool{max: DefaultMaxTransactions, stores: 1, jobs: map[int64]*txJob{}, lost: map[lostKey]int{}}
	p.ended = sync.NewCond(&p.mu)
	return p
}

// SetMaxTransactions sets how many jobs of the database are claimed in open transactions at most, each
// with a connection of its own. Those beyond a lower limit stay claimed.
func (s *Store) SetMaxTransactions(n int) {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	s.tx.max = n
}

// Succeed has the Store share the open transactions of another one of the same database, as after
// a reload of the config, until one of the two is closed. It settles and takes back claims of
// queues that it has no table for as the other one would. It has to be called before all other
// methods. The limit is the other one's; SetMaxTransactions then changes it for both.
func (s *Store) Succeed(other *Store) {
	s.former = map[string]*statement.Queue{}
	maps.Copy(s.former, other.former)
	maps.Copy(s.former, other.queues())
	for name := range s.tables {
		delete(s.former, name)
	}
	s.ObstacleSet().Inherit(other.ObstacleSet())
	s.ObstacleSet().Keep(func(o *backends.Obstacle) bool { // the table fits now, or another one has the queue
		return o.Job != "" || !s.Adopted(o.Queue) || s.queues()[o.Queue] == nil
	})
	s.held, s.slow = other.held, other.slow
	s.tx = other.tx
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	s.tx.stores++
}

// ClaimsInTx implements backends.Mixed.
func (s *Store) ClaimsInTx(queue string) bool { return s.kind(queue) == txQueue }

// InTx implements backends.Mixed.
func (s *Store) InTx(l backends.Lease) bool { return s.tx.provedBy(l) != nil }

// provedBy finds the job of a lease; nil: it is not in the pool.
func (t *txPool) provedBy(l backends.Lease) *txJob {
	id, ok := lease.ParseHandle(l.Job)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if j := t.jobs[id]; j != nil && j.lease.Proof() == l {
		return j
	}
	if run := t.running[l]; run != nil { // it has possibly ended
		return run.job
	}
	return nil
}

// run returns the write about a lease that others did not wait for; nil: there is none.
func (t *txPool) run(l backends.Lease) *txRun {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[l]
}

// maxRuns bounds the memory for writes whose callers don't try them again.
const maxRuns = 1000

// addRun remembers a write. It returns false if it can't.
func (t *txPool) addRun(run *txRun) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.running) >= maxRuns { // those that have ended were not asked for
		maps.DeleteFunc(t.running, func(_ backends.Lease, run *txRun) bool { return run.hasEnded() })
	}
	if t.closed || len(t.running) >= maxRuns {
		return false
	}
	if t.running == nil {
		t.running = map[backends.Lease]*txRun{}
	}
	t.running[run.proof] = run
	return true
}

func (t *txPool) forgetRun(run *txRun) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, run.proof)
}

// endRuns ends the writes that others did not wait for.
func (t *txPool) endRuns() {
	t.mu.Lock()
	for _, run := range t.running {
		run.end()
	}
	t.running = nil
	t.mu.Unlock()
	t.runs.Wait()
}

// find finds the jobs that meet the condition, in the order of their leases' ids.
func (t *txPool) find(where func(*txJob) bool) (found []*txJob) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, j := range t.jobs {
		if where(j) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(a, b *txJob) int { return cmp.Compare(a.lease.ID, b.lease.ID) })
	return found
}

// reserve reserves a connection. If all are in use it notes the queues for connectable.
func (t *txPool) reserve(queues []backends.Policy) (ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used < t.max && !t.closed {
		t.used++
		return true
	}
	for _, policy := range queues {
		addQueues(&t.waiting, policy.Queue)
	}
	return false
}

// connect returns the reserved connection. fresh: no other job had it before.
func (t *txPool) connect(ctx context.Context, engine backends.Engine) (c txConn, fresh bool, err error) {
	t.mu.Lock()
	idle := t.idle
	if i := slices.IndexFunc(t.free, func(c txConn) bool { return c.engine == engine }); i >= 0 {
		c = t.free[i]
		t.free = slices.Delete(t.free, i, i+1)
	}
	t.mu.Unlock()
	if c.OpenTx != nil {
		return c, false, nil
	}
	c.engine = engine
	c.OpenTx, err = engine.(backends.TxClaimer).OpenTx(ctx, idle) // adopt checked that it is one
	return c, true, err
}

// release ends the reservation of a connection, and rolls its transaction back. It returns the
// queues for which there was no connection.
func (t *txPool) release(ctx context.Context, c txConn) (waiting []string) {
	if c.OpenTx != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := c.Rollback(ctx); err != nil {
			c.Close() // the server rolls back
			c.OpenTx = nil
		}
	}
	t.mu.Lock()
	t.used--
	waiting, t.waiting = t.waiting, nil
	if c.OpenTx != nil && !t.closed {
		t.free, c.OpenTx = append(t.free, c), nil
	}
	t.ended.Broadcast()
	t.mu.Unlock()
	if c.OpenTx != nil {
		c.Close()
	}
	return waiting
}

// add gives the connection to a job.
func (t *txPool) add(j *txJob) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.jobs[j.lease.ID] = j
}

// end removes a job whose transaction is committed, or rolls it back. The caller holds j.mu. It
// returns the queues for which there was no connection.
func (t *txPool) end(ctx context.Context, j *txJob) (waiting []string) {
	j.ended = true
	t.mu.Lock()
	if t.jobs[j.lease.ID] == j {
		delete(t.jobs, j.lease.ID)
	}
	t.mu.Unlock()
	return t.release(ctx, j.conn)
}

// noteLoss records that the connection of a job was lost. Its row could not be changed any more: other consumers can have it. So the
// next claim of it counts the loss, unless it is one of freeLosses.
func (t *txPool) noteLoss(j *txJob) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lost) >= maxLost {
		clear(t.lost)
	}
	key := lostKey{j.queue.Queue, j.lease.Item}
	if t.lost[key]++; t.lost[key] <= freeLosses {
		t.noted.Add(j.queue.Queue, backends.CauseTxLost, false)
	}
}

// forgetLosses is called when a job was settled, or its loss counted. left is how many losses are remembered.
func (t *txPool) forgetLosses(queue, item string, left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if key := (lostKey{queue, item}); left > 0 {
		t.lost[key] = left
	} else {
		delete(t.lost, key)
	}
}

// losses returns how often in a row the job's connection was lost.
func (t *txPool) losses(queue, item string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost[lostKey{queue, item}]
}

// takeNoted returns the losses that no result reported yet.
func (t *txPool) takeNoted() backends.FailedCounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	noted := t.noted
	t.noted = nil
	return noted
}

// rollBack ends jobs as if they had never been claimed.
func (t *txPool) rollBack(ctx context.Context, jobs []*txJob) {
	var wg sync.WaitGroup
	for _, j := range jobs {
		wg.Go(func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			if !j.ended {
				t.addWaiting(t.end(ctx, j))
			}
		})
	}
	wg.Wait()
}

// ping keeps the servers from ending the connections, and ends the jobs whose connections are
// broken. It does not wait for the answers.
func (t *txPool) ping(timeout time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	for _, j := range t.jobs {
		t.pings.Go(func() {
			if !j.mu.TryLock() {
				return // a call is using it, which has the same effect
			}
			defer j.mu.Unlock()
			if j.ended {
				return
			}
			ctx, cancel := context.WithTimeoutCause(context.Background(), timeout, errors.New("no answer to a ping"))
			defer cancel()
			if err := j.conn.Ping(ctx); err != nil {
				t.noteLoss(j)
				t.addWaiting(t.end(ctx, j))
			}
		})
	}
}

// addWaiting notes queues for connectable.
func (t *txPool) addWaiting(queues []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = append(t.waiting, queues...)
}

// connectable are the queues for which there was no connection, and is one now.
func (t *txPool) connectable() (queues []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used < t.max {
		queues, t.waiting = t.waiting, nil
	}
	return queues
}

// close ends a Store's use of the pool. The last one rolls all transactions back. Another one waits
// for the jobs on connections of its engine, and closes the free ones.
func (t *txPool) close(engine backends.Engine) {
	t.mu.Lock()
	t.stores--
	t.closed = t.stores == 0
	last := t.closed
	t.mu.Unlock()
	if last {
		t.pings.Wait()
		t.endRuns()
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		t.rollBack(ctx, t.find(func(*txJob) bool { return true }))
	}
	t.mu.Lock()
	for t.uses(engine) {
		t.ended.Wait()
	}
	var free []txConn
	t.free = slices.DeleteFunc(t.free, func(c txConn) bool {
		if c.engine == engine {
			free = append(free, c)
		}
		return c.engine == engine
	})
	t.mu.Unlock()
	for _, c := range free {
		c.Close()
	}
}

// uses reports whether a job is on a connection of the engine. The caller holds t.mu.
func (t *txPool) uses(engine backends.Engine) bool {
	for _, j := range t.jobs {
		if j.conn.engine == engine {
			return true
		}
	}
	return false
}
