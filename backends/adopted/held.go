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
)

// DefaultMaxHeld is how many jobs a Store holds at a time, where nothing is said.
const DefaultMaxHeld = 16

// holds are the transactions that keep the rows of held jobs locked. Nothing in the
// database says whose they are: what is not in here is held by somebody else.
type holds struct {
	mu    sync.Mutex
	max   int
	idle  time.Duration   // after which a server ends a connection that says nothing
	taken int             // connections with a job, or on the way to one
	free  []spare         // connections without
	jobs  map[int64]*held // by the lease's id
	short []string        // queues for which there was no connection
	over  bool
	pings sync.WaitGroup

	stores int        // that share this; see Succeed
	ended  *sync.Cond // told of each job that is held no longer
}

// spare is a connection, and the engine that opened it.
type spare struct {
	backends.OpenTx
	of backends.Adopter
}

func newHolds() *holds {
	h := &holds{max: DefaultMaxHeld, stores: 1}
	h.ended = sync.NewCond(&h.mu)
	return h
}

// held is a job, and the connection that holds its row.
type held struct {
	mu      sync.Mutex // the connection's: one caller at a time
	conn    spare
	table   *table
	lease   *lease
	began   time.Time // by this host's clock
	timeout time.Duration
	ended   bool // what follows is not about it any more
}

// SetMaxHeld says how many jobs of the database are held at most, each with a
// connection of its own. Those who hold more already keep them.
func (s *Store) SetMaxHeld(n int) {
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	s.holds.max = n
}

// Succeed has the Store go on with the jobs that another one of the same database holds,
// as when its config is reloaded: both have them, until one of the two is closed. What was
// claimed of queues that it has no table for is settled and taken back as by the other one.
// It is called before anything else. The limit is the other one's; SetMaxHeld after that
// changes it for both.
func (s *Store) Succeed(other *Store) {
	s.former = maps.Clone(other.former)
	if s.former == nil {
		s.former = map[string]*table{}
	}
	maps.Copy(s.former, other.tables)
	for q := range s.tables {
		delete(s.former, q)
	}
	s.holds = other.holds
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	s.holds.stores++
}

// Holds implements backends.Mixed.
func (s *Store) ClaimsInTx(queue string) bool { return s.kind(queue) == ofHeld }

// Holding implements backends.Mixed.
func (s *Store) InTx(l backends.Lease) bool { return s.holds.find(l) != nil }

// find is the job that the lease proves; nil: it is not held here.
func (h *holds) find(l backends.Lease) *held {
	id, ok := handled(l.Job)
	if !ok {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if j := h.jobs[id]; j != nil && j.proof() == l {
		return j
	}
	return nil
}

func (j *held) proof() backends.Lease { return j.lease.proof() }

// all are the jobs that meet the condition, in the order of their leases' ids.
func (h *holds) all(where func(*held) bool) (found []*held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, j := range h.jobs {
		if where(j) {
			found = append(found, j)
		}
	}
	slices.SortFunc(found, func(a, b *held) int { return cmp.Compare(a.lease.id, b.lease.id) })
	return found
}

// room takes a place for a connection, unless all are taken: then the queues are
// told of when there is one.
func (h *holds) room(queues []backends.Policy) (ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken < h.max && !h.over {
		h.taken++
		return true
	}
	for _, p := range queues {
		if !slices.Contains(h.short, p.Queue) {
			h.short = append(h.short, p.Queue)
		}
	}
	return false
}

// connection is one for a place that was taken. fresh: no other job had it before.
func (h *holds) connection(ctx context.Context, engine backends.Adopter) (c spare, fresh bool, err error) {
	h.mu.Lock()
	idle := h.idle
	if i := slices.IndexFunc(h.free, func(c spare) bool { return c.of == engine }); i >= 0 {
		c = h.free[i]
		h.free = slices.Delete(h.free, i, i+1)
	}
	h.mu.Unlock()
	if c.OpenTx != nil {
		return c, false, nil
	}
	c.of = engine
	c.OpenTx, err = engine.(backends.TxClaimer).OpenTx(ctx, idle) // New saw that it is one
	return c, true, err
}

// leave gives a place back, with its connection where that is of use. It returns the
// queues for which there was none.
func (h *holds) leave(ctx context.Context, c spare) (short []string) {
	if c.OpenTx != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeFor)
		defer cancel()
		if err := c.Rollback(ctx); err != nil {
			c.Close() // and its server rolls back
			c.OpenTx = nil
		}
	}
	h.mu.Lock()
	h.taken--
	short, h.short = h.short, nil
	if c.OpenTx != nil && !h.over {
		h.free, c.OpenTx = append(h.free, c), nil
	}
	h.ended.Broadcast()
	h.mu.Unlock()
	if c.OpenTx != nil {
		c.Close()
	}
	return short
}

// keep makes a job the connection's.
func (h *holds) keep(j *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.jobs == nil {
		h.jobs = map[int64]*held{}
	}
	h.jobs[j.lease.id] = j
}

// end has the job be held no longer: its transaction is committed, or rolled back
// now. j.mu is held. It returns the queues for which there was no connection.
func (h *holds) end(ctx context.Context, j *held) (short []string) {
	j.ended = true
	h.mu.Lock()
	if h.jobs[j.lease.id] == j {
		delete(h.jobs, j.lease.id)
	}
	h.mu.Unlock()
	return h.leave(ctx, j.conn)
}

// letGo rolls the transactions of jobs back, which is as if they had never been
// claimed.
func (h *holds) letGo(ctx context.Context, jobs []*held) {
	var wg sync.WaitGroup
	for _, j := range jobs {
		wg.Go(func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			if !j.ended {
				h.lost(h.end(ctx, j))
			}
		})
	}
	wg.Wait()
}

// ping shows the servers that this host is there, and finds out which connections
// are not. It does not wait for their answers.
func (h *holds) ping(patience time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return
	}
	for _, j := range h.jobs {
		h.pings.Go(func() {
			if !j.mu.TryLock() {
				return // it is being used, which does as well
			}
			defer j.mu.Unlock()
			if j.ended {
				return
			}
			ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("no answer to a ping"))
			defer cancel()
			if err := j.conn.Ping(ctx); err != nil {
				h.lost(h.end(ctx, j))
			}
		})
	}
}

// lost remembers queues for which there was no connection, and now is: the next
// sweep tells of them.
func (h *holds) lost(short []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.short = append(h.short, short...)
}

// roomFor are the queues for which there was no connection, and now is.
func (h *holds) roomFor() (queues []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken < h.max {
		queues, h.short = h.short, nil
	}
	return queues
}

// close ends what a Store has of it. The last one lets everything go; another one waits
// for the jobs on connections of its engine.
func (h *holds) close(engine backends.Adopter) {
	h.mu.Lock()
	h.stores--
	h.over = h.stores == 0
	last := h.over
	h.mu.Unlock()
	if last {
		h.pings.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), closeFor)
		defer cancel()
		h.letGo(ctx, h.all(func(*held) bool { return true }))
	}
	h.mu.Lock()
	for h.busy(engine) {
		h.ended.Wait()
	}
	var free []spare
	h.free = slices.DeleteFunc(h.free, func(c spare) bool {
		if c.of == engine {
			free = append(free, c)
		}
		return c.of == engine
	})
	h.mu.Unlock()
	for _, c := range free {
		c.Close()
	}
}

// busy: there are jobs on connections of the engine. h.mu is held.
func (h *holds) busy(engine backends.Adopter) bool {
	for _, j := range h.jobs {
		if j.conn.of == engine {
			return true
		}
	}
	return false
}

// closeFor bounds the good-byes to servers, which notice the end without them.
const closeFor = 2 * time.Second
