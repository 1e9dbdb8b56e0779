package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
)

// link is a bank's way to its database. A reload may put another Backend of the same
// database in the place of the one that is there (another address, a larger pool, a
// new password): calls under way end on the old one, and only then is it done with.
type link struct {
	mu      sync.Mutex
	end     *linkEnd
	leaving []*linkEnd     // that were replaced, and are still in use
	past    backends.Usage // of the Backends before them
}

// linkEnd is a Backend and its users.
type linkEnd struct {
	backends.Backend
	done  func()        // told once, when nobody uses it any more; nil: nobody
	gone  chan struct{} // closed as soon as another one is in its place
	users int

	looks  chan struct{} // taken by each request of an operator; see look
	depths chan struct{} // by each question that an enqueue waits for
}

const (
	// ownConnections of a pool are for commits, a write that was set aside and maintenance,
	// however much operators ask.
	ownConnections = 4
	// poollessLooks is how many operators' requests an engine without a pool gets at a time.
	poollessLooks = 4
)

func newLink(b backends.Backend, done func()) *link { return &link{end: newLinkEnd(b, done)} }

func newLinkEnd(b backends.Backend, done func()) *linkEnd {
	e := &linkEnd{Backend: b, done: done, gone: make(chan struct{}), depths: make(chan struct{}, 1)}
	looks := poollessLooks
	if u, ok := e.usage(); ok && u.Max > 0 {
		looks = max(1, u.Max-ownConnections)
	}
	e.looks = make(chan struct{}, looks)
	return e
}

// replace puts another Backend in the place of the present one.
func (l *link) replace(b backends.Backend, done func()) {
	next := newLinkEnd(b, done)
	l.mu.Lock()
	old := l.end
	l.end = next
	l.leaving = append(l.leaving, old)
	close(old.gone)
	idle := old.users == 0
	if idle {
		l.left(old)
	}
	l.mu.Unlock()
	if idle {
		old.finish()
	}
}

// finish says that the present Backend is not used any more. A request that began by an
// older plan may still come: it is told that the database was left.
func (l *link) finish() {
	l.replace(&backends.Offline{About: l.info(), Why: func() error { return errDeparted }}, nil)
}

var errDeparted = errors.New("a reload of the config took this database out of use")

func (e *linkEnd) finish() {
	if e.done != nil {
		e.done()
	}
}

// use is the present Backend, until release is called.
func (l *link) use() (e *linkEnd, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e = l.end
	e.users++
	return e, func() { l.release(e) }
}

func (l *link) release(e *linkEnd) {
	l.mu.Lock()
	e.users--
	last := e.users == 0 && l.end != e
	if last {
		l.left(e)
	}
	l.mu.Unlock()
	if last {
		e.finish()
	}
}

// is reports whether that is the present Backend.
func (l *link) is(b backends.Backend) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end.Backend == b
}

// info is the present Backend's.
func (l *link) info() backends.Info {
	e, release := l.use()
	defer release()
	return e.Info()
}

// Commit is Backend's.
func (l *link) Commit(ctx context.Context, b backends.Batch) (backends.Results, error) {
	e, release := l.use()
	defer release()
	return e.Commit(ctx, b)
}

// Beat is Backend's.
func (l *link) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	e, release := l.use()
	defer release()
	return e.Heartbeat(ctx, b)
}

// Held is Backend's.
func (l *link) ClaimedBy(ctx context.Context, host backends.Identity, after string, limit int) ([]backends.ClaimedJob, error) {
	e, release := l.use()
	defer release()
	return e.ClaimedBy(ctx, host, after, limit)
}

// Sweep is Backend's.
func (l *link) Maintain(ctx context.Context, s backends.Maintenance) (backends.MaintenanceResult, error) {
	e, release := l.use()
	defer release()
	return e.Maintain(ctx, s)
}

// look is the present Backend for a look or a command, until release is called. Only some are
// carried out at a time, so that commits find a connection: others wait for their turn.
func (l *link) look(ctx context.Context) (i backends.Inspector, release func(), err error) {
	return l.inTurn(ctx, func(e *linkEnd) chan struct{} { return e.looks })
}

// depth is look for what an enqueue waits for: it does not wait for operators.
func (l *link) depth(ctx context.Context) (i backends.Inspector, release func(), err error) {
	return l.inTurn(ctx, func(e *linkEnd) chan struct{} { return e.depths })
}

func (l *link) inTurn(ctx context.Context, turn func(e *linkEnd) chan struct{}) (i backends.Inspector, release func(), err error) {
	e, done := l.use()
	i, ok := e.Backend.(backends.Inspector)
	if !ok {
		done()
		return nil, nil, errNoLook
	}
	select {
	case turn(e) <- struct{}{}:
		return i, func() { <-turn(e); done() }, nil
	case <-ctx.Done():
		done()
		return nil, nil, backends.Unavailable(fmt.Errorf("too many requests of operators wait for the database: %w", context.Cause(ctx)))
	}
}

// stats is Inspector's Stats, in turn.
func (l *link) stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	look, release, err := l.look(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return look.Stats(ctx, queue)
}

// peek is Inspector's Peek, in turn.
func (l *link) peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	look, release, err := l.look(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return look.Peek(ctx, p)
}

// command is Inspector's Command, in turn.
func (l *link) command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	look, release, err := l.look(ctx)
	if err != nil {
		return 0, false, err
	}
	defer release()
	return look.Command(ctx, c)
}

// adopted reports whether the queue lives in a table that somebody else owns.
func (l *link) adopted(queue string) bool {
	e, release := l.use()
	defer release()
	m, ok := e.Backend.(backends.Mixed)
	return ok && m.Adopted(queue)
}

// holds reports whether the queue's jobs are held in transactions.
func (l *link) holds(queue string) bool {
	e, release := l.use()
	defer release()
	m, ok := e.Backend.(backends.Mixed)
	return ok && m.ClaimsInTx(queue)
}

// holding reports whether the lease is of a held job.
func (l *link) holding(lease backends.Lease) bool {
	e, release := l.use()
	defer release()
	m, ok := e.Backend.(backends.Mixed)
	return ok && m.InTx(lease)
}

// notifications calls hear with the names of queues that others made jobs ready in, of
// one Backend after the other, until ctx is done.
func (l *link) notifications(ctx context.Context, hear func(queue string)) {
	for ctx.Err() == nil {
		e, release := l.use()
		l.listen(ctx, e, hear)
		release()
		select {
		case <-e.gone:
			hear("") // between the two names may have been missed
		case <-ctx.Done():
		}
	}
}

// listen hears e's notifications until it is replaced or ctx is done.
func (l *link) listen(ctx context.Context, e *linkEnd, hear func(queue string)) {
	n, ok := e.Backend.(backends.Notifier)
	if !ok {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	queues, ok := n.Notifications(ctx)
	if !ok {
		return
	}
	for {
		select {
		case q, open := <-queues:
			if !open {
				return
			}
			hear(q)
		case <-e.gone:
			stop()
			for range queues { // it closes the channel when it is done
			}
			return
		}
	}
}

// errNoLocator says that the queue of a lease is not known.
var errNoLocator = errors.New("this database cannot tell the queue of a lease of another sidecar: give the user a rule without `queues`")

// errNoLook says that the backend is no Inspector.
var errNoLook = errors.New("the database cannot be looked into")

// queues asks the present Backend in which queues the leases' jobs are.
func (l *link) queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	e, release := l.use()
	defer release()
	locator, ok := e.Backend.(backends.Locator)
	if !ok {
		return nil, errNoLocator
	}
	return locator.Queues(ctx, leases)
}
