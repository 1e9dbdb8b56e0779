package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// Defaults of Limits.
const (
	DefaultConnections = 10_000
	DefaultHeldJobs    = 10_000
	DefaultQueueNames  = 10_000
)

// Limits bound what clients may take of the sidecar. What is over one is refused with
// `busy`, and harms nobody else.
type Limits struct {
	Connections int // in all. Defaults to 10,000
	PerUser     int // connections of one user; 0: no limit but the one above
	Held        int // jobs that one connection holds. Defaults to 10,000
	Buffered    int // bytes of messages, see buffers; 1 MiB at least. Defaults to 256 MiB
	QueueNames  int // names that clients of one user made up, for which "*" stands. Defaults to 10,000
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, DefaultConnections)
	l.Held = cmp.Or(l.Held, DefaultHeldJobs)
	l.Buffered = cmp.Or(l.Buffered, DefaultBuffered)
	l.QueueNames = cmp.Or(l.QueueNames, DefaultQueueNames)
	return l
}

func (l Limits) validate(bad func(format string, args ...any)) {
	for key, n := range map[string]int{"connections": l.Connections, "held": l.Held, "queue_names": l.QueueNames} {
		if n < 1 {
			bad("limits.%s: %d is below 1", key, n)
		}
	}
	if l.Buffered < 1<<20 {
		bad("limits.buffered: %d bytes is below 1 MiB", l.Buffered)
	}
	if l.PerUser < 0 {
		bad("limits.connections_per_user: %d is negative", l.PerUser)
	}
}

const (
	// turnedAway is how many connections over the limit are told so at a time; more
	// are closed without a word.
	turnedAway = 64
	// turnAwayTimeout is how long such a connection has to say which codec it speaks.
	turnAwayTimeout = time.Second
)

// full says why there is no place for one more connection; nil: there is. b.mu is held.
func (b *Bridge) full(who *peer) *protocol.Error {
	l := b.plan.Load().opts.Limits
	if n := len(b.sessions); n >= l.Connections {
		return protocol.Errorf(protocol.CodeBusy, "the sidecar has %d connections, which is its limit (limits.connections in its config): close some, or let programs share one", n)
	}
	if who != nil && l.PerUser > 0 && b.users[who.uid] >= l.PerUser {
		return protocol.Errorf(protocol.CodeBusy, "user %d has %d connections, which is the limit (limits.connections_per_user in the sidecar's config): close some, or let programs share one",
			who.uid, b.users[who.uid])
	}
	return nil
}

// turnAway tells a connection that there is no place for it, in its own codec, and
// returns; the caller closes it.
func (b *Bridge) turnAway(conn conn, who *peer, why *protocol.Error) {
	b.mu.Lock()
	refusing := b.refusing < turnedAway && !b.closing
	if refusing {
		b.refusing++
		b.serving.Add(1)
	}
	b.mu.Unlock()
	if !refusing {
		return
	}
	defer func() {
		b.mu.Lock()
		b.refusing--
		b.mu.Unlock()
		b.serving.Done()
	}()
	time.Sleep(b.brakes.delay(who, 0))
	if err := conn.SetDeadline(time.Now().Add(turnAwayTimeout)); err != nil {
		return // it is gone
	}
	r := protocol.NewReader(conn, 64<<10) // whatever it says first
	_, codec, err := r.Next()
	if codec = cmp.Or(codec, r.Codec()); codec == 0 && err != nil {
		return
	}
	_, _ = conn.Write(codec.AppendReply(nil, &protocol.Reply{Error: why})) // it may be gone
}

// roomForJobs holds new jobs against the limits: of names that are made up, and of their
// queues' ready jobs.
func (s *session) roomForJobs(p *plan, bank *bank, jobs []protocol.NewJob) error {
	for i := range jobs {
		if err := s.roomForName(p, jobs[i].Queue); err != nil {
			return err
		}
	}
	if !p.limited {
		return nil
	}
	count := make(map[string]int64, 1)
	for i := range jobs {
		count[jobs[i].Queue]++
	}
	for name, n := range count {
		q, _ := p.queue(name)
		if q.MaxReady == 0 {
			continue
		}
		if err := bank.depths.room(bank, name, n, int64(q.MaxReady)); err != nil {
			return err
		}
	}
	return nil
}

// depthAge is how old a queue's depth may be for max_ready.
const depthAge = time.Second

// depths are how many ready jobs there are in queues that have a limit of them: as the
// database last said, and what was enqueued here since.
type depths struct {
	mu  sync.Mutex
	all map[string]*depth
}

type depth struct {
	mu    sync.Mutex // one look at a time
	ready int64
	at    time.Time
}

// room takes a place for n more ready jobs of a queue; an error says that there is none.
func (d *depths) room(bank *bank, name string, n, most int64) error {
	d.mu.Lock()
	q := d.all[name]
	if q == nil {
		if d.all == nil {
			d.all = make(map[string]*depth)
		}
		q = &depth{}
		d.all[name] = q
	}
	d.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.at) > depthAge {
		if err := q.look(bank, name); err != nil {
			return err
		}
	}
	if n > most { // no worker's pace mends that
		return protocol.Errorf(protocol.CodeBusy, "%d jobs at once for the queue %s, whose limit is %d ready jobs (max_ready): nothing was stored; enqueue fewer at a time", n, name, most)
	}
	if q.ready+n > most {
		e := protocol.Errorf(protocol.CodeBusy, "the queue %s has %d ready jobs, and its limit is %d (max_ready): nothing was stored; try again when workers have caught up",
			name, q.ready, most)
		e.RetryMS = protocol.Some(depthAge.Milliseconds())
		return e
	}
	q.ready += n
	return nil
}

// forget forgets queues.
func (d *depths) forget(names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		delete(d.all, name)
	}
}

var errNoLook = errors.New("the database cannot be looked into")

// look asks the database. q.mu is held.
func (q *depth) look(bank *bank, name string) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), enqueueWait, fmt.Errorf("the depth of the queue %s: no answer within %v", name, enqueueWait))
	defer cancel()
	look, release := bank.link.inspector()
	defer release()
	if look == nil {
		return errNoLook
	}
	stats, err := look.Stats(ctx, name)
	if err != nil {
		return err
	}
	q.ready, q.at = 0, time.Now()
	for _, s := range stats {
		q.ready += s.Ready
	}
	return nil
}
