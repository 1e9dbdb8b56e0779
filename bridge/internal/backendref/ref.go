package backendref

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Ref refers to the Backend of a database. A reload can replace it by another one of the same database, with another
// address, a larger pool or a new password. Calls under way end on the old Backend. After the last of them the Ref no
// longer uses it.
type Ref struct {
	mu      sync.Mutex
	current *endpoint
	inUse   []*endpoint    // replaced Backends that are still in use
	past    backends.Usage // of Backends that were replaced and are no longer in use
}

// endpoint is a Backend and its users.
type endpoint struct {
	backends.Backend
	replica  backends.Replica // nil: none
	done     func()           // called once, when the last call has ended; can be nil
	replaced chan struct{}    // closed when another endpoint replaces this one
	users    int

	inspections    chan struct{} // one element for each running query or command of an operator; see inspect
	enqueueQueries chan struct{} // one element for each running query that an enqueue waits for
}

const (
	// reservedConnections of a pool are for commits, locked writes and maintenance, however many requests operators
	// send.
	reservedConnections = 4
	// defaultInspections is how many requests of operators run at a time on an engine without a pool.
	defaultInspections = 4
)

// New returns a reference to b and its replica, which can be nil. done, which can be nil, is called when b is replaced and
// its last call has ended.
func New(b backends.Backend, replica backends.Replica, done func()) *Ref {
	return &Ref{current: newEndpoint(b, replica, done)}
}

func newEndpoint(b backends.Backend, replica backends.Replica, done func()) *endpoint {
	e := &endpoint{Backend: b, replica: replica, done: done, replaced: make(chan struct{}), enqueueQueries: make(chan struct{}, 1)}
	looks := defaultInspections
	if u, ok := e.usage(); ok && u.Max > 0 {
		looks = max(1, u.Max-reservedConnections)
	}
	e.inspections = make(chan struct{}, looks)
	return e
}

// Replace replaces the current Backend and its replica. done, which can be nil, is called when b is replaced in turn and its last
// call has ended.
func (r *Ref) Replace(b backends.Backend, replica backends.Replica, done func()) {
	next := newEndpoint(b, replica, done)
	r.mu.Lock()
	old := r.current
	r.current = next
	r.inUse = append(r.inUse, old)
	close(old.replaced)
	idle := old.users == 0
	if idle {
		r.addPast(old)
	}
	r.mu.Unlock()
	if idle {
		old.finish()
	}
}

// Retire ends the use of the Backend. A request that began before still finds a Backend, which is always
// unavailable.
func (r *Ref) Retire() {
	r.Replace(&backends.Offline{About: r.Info(), Why: func() error { return errRetired }}, nil, nil)
}

var errRetired = errors.New("a reload of the config took this database out of use")

func (e *endpoint) finish() {
	if e.done != nil {
		e.done()
	}
}

// use returns the current Backend, which stays usable until release is called.
func (r *Ref) use() (e *endpoint, release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e = r.current
	e.users++
	return e, func() { r.release(e) }
}

func (r *Ref) release(e *endpoint) {
	r.mu.Lock()
	e.users--
	last := e.users == 0 && r.current != e
	if last {
		r.addPast(e)
	}
	r.mu.Unlock()
	if last {
		e.finish()
	}
}

// Is reports whether b is the current Backend.
func (r *Ref) Is(b backends.Backend) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current.Backend == b
}

// Info returns the Info of the current Backend.
func (r *Ref) Info() backends.Info {
	e, release := r.use()
	defer release()
	return e.Info()
}

// Commit calls Commit of the current Backend.
func (r *Ref) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	e, release := r.use()
	defer release()
	return e.Commit(ctx, b)
}

// Heartbeat calls Heartbeat of the current Backend.
func (r *Ref) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	e, release := r.use()
	defer release()
	return e.Heartbeat(ctx, b)
}

// ClaimedBy calls ClaimedBy of the current Backend.
func (r *Ref) ClaimedBy(ctx context.Context, sidecar backends.Identity, after string, limit int) ([]backends.ClaimedJob, error) {
	e, release := r.use()
	defer release()
	return e.ClaimedBy(ctx, sidecar, after, limit)
}

// Maintain calls Maintain of the current Backend.
func (r *Ref) Maintain(ctx context.Context, s backends.Maintenance) (backends.MaintenanceResult, error) {
	e, release := r.use()
	defer release()
	return e.Maintain(ctx, s)
}

// inspect returns the current Backend for a query or command of an operator, until release is called. Only some
// run at a time, so that commits find a connection.
func (r *Ref) inspect(ctx context.Context) (i backends.Inspector, release func(), err error) {
	return r.limited(ctx, func(e *endpoint) chan struct{} { return e.inspections })
}

// InspectForEnqueue is inspect for a query that an enqueue waits for. It does not wait for operators.
func (r *Ref) InspectForEnqueue(ctx context.Context) (i backends.Inspector, release func(), err error) {
	return r.limited(ctx, func(e *endpoint) chan struct{} { return e.enqueueQueries })
}

func (r *Ref) limited(ctx context.Context, turn func(e *endpoint) chan struct{}) (i backends.Inspector, release func(), err error) {
	e, done := r.use()
	i, ok := e.Backend.(backends.Inspector)
	if !ok {
		done()
		return nil, nil, errNoInspector
	}
	select {
	case turn(e) <- struct{}{}:
		return i, func() { <-turn(e); done() }, nil
	case <-ctx.Done():
		done()
		return nil, nil, backends.Unavailable(fmt.Errorf("too many requests of operators wait for the database: %w", context.Cause(ctx)))
	}
}

// Stats calls Stats of the Inspector; see inspect.
func (r *Ref) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	look, release, err := r.inspect(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return look.Stats(ctx, queue)
}

// Peek calls Peek of the Inspector; see inspect.
func (r *Ref) Peek(ctx context.Context, p backends.Peek) ([]backends.View, error) {
	look, release, err := r.inspect(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return look.Peek(ctx, p)
}

// Command calls Command of the Inspector; see inspect.
func (r *Ref) Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error) {
	look, release, err := r.inspect(ctx)
	if err != nil {
		return 0, false, err
	}
	defer release()
	return look.Command(ctx, c)
}

// Cancelled calls Cancelled of the Inspector, without waiting for operators.
func (r *Ref) Cancelled(ctx context.Context, sidecar backends.Identity) ([]backends.Token, error) {
	e, release := r.use()
	defer release()
	if i, ok := e.Backend.(backends.Inspector); ok {
		return i.Cancelled(ctx, sidecar)
	}
	return nil, nil
}

// Admit calls Admit of the current Backend, if it is a backends.Admitter.
func (r *Ref) Admit(ctx context.Context, groups []backends.Group) (ready []string) {
	e, release := r.use()
	defer release()
	if a, ok := e.Backend.(backends.Admitter); ok {
		return a.Admit(ctx, groups)
	}
	return nil
}

// GroupSlots calls GroupSlots of the current Backend, if it is a backends.Admitter; see inspect.
func (r *Ref) GroupSlots(ctx context.Context, g backends.Group, limit int) ([]backends.JobState, error) {
	look, release, err := r.inspect(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if a, ok := look.(backends.Admitter); ok {
		return a.GroupSlots(ctx, g, limit)
	}
	return nil, nil
}

// AddHistory calls AddHistory of the current Backend, if it is a backends.Historian.
func (r *Ref) AddHistory(ctx context.Context, now time.Time, rows []backends.HourTotals) error {
	e, release := r.use()
	defer release()
	if h, ok := e.Backend.(backends.Historian); ok {
		return h.AddHistory(ctx, now, rows)
	}
	return nil
}

// History calls History of the Historian; see inspect.
func (r *Ref) History(ctx context.Context, queue string) ([]backends.HourTotals, error) {
	look, release, err := r.inspect(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if h, ok := look.(backends.Historian); ok {
		return h.History(ctx, queue)
	}
	return nil, nil
}

// keeper calls f with the ProgressKeeper of the current Backend.
func (r *Ref) keeper(f func(k backends.ProgressKeeper) error) error {
	e, release := r.use()
	defer release()
	if k, ok := e.Backend.(backends.ProgressKeeper); ok {
		return f(k)
	}
	return backends.ErrNoProgress
}

// SaveProgress calls SaveProgress of the current Backend.
func (r *Ref) SaveProgress(ctx context.Context, all []backends.LeaseProgress) (out []backends.ProgressOutcome, err error) {
	err = r.keeper(func(k backends.ProgressKeeper) error { out, err = k.SaveProgress(ctx, all); return err })
	return out, err
}

// ProgressOf calls ProgressOf of the current Backend.
func (r *Ref) ProgressOf(ctx context.Context, ids []string) (all map[string]backends.Progress, err error) {
	err = r.keeper(func(k backends.ProgressKeeper) error { all, err = k.ProgressOf(ctx, ids); return err })
	return all, err
}

// ForgetProgress calls ForgetProgress of the current Backend.
func (r *Ref) ForgetProgress(ctx context.Context, ids []string) error {
	return r.keeper(func(k backends.ProgressKeeper) error { return k.ForgetProgress(ctx, ids) })
}

// ProgressJobs calls ProgressJobs of the current Backend.
func (r *Ref) ProgressJobs(ctx context.Context, after string, limit int) (ids []string, err error) {
	err = r.keeper(func(k backends.ProgressKeeper) error { ids, err = k.ProgressJobs(ctx, after, limit); return err })
	return ids, err
}

// errNoScheduler is returned if the backend is not a backends.Scheduler.
var errNoScheduler = errors.New("this database doesn't support schedules")

// schedule calls f with the Scheduler; see inspect.
func (r *Ref) schedule(ctx context.Context, f func(s backends.Scheduler) error) error {
	look, release, err := r.inspect(ctx)
	if err != nil {
		return err
	}
	defer release()
	s, ok := look.(backends.Scheduler)
	if !ok {
		return errNoScheduler
	}
	return f(s)
}

// Schedules calls Schedules of the Scheduler; see inspect.
func (r *Ref) Schedules(ctx context.Context, l backends.ScheduleList) (all []backends.Schedule, err error) {
	err = r.schedule(ctx, func(s backends.Scheduler) error { all, err = s.Schedules(ctx, l); return err })
	return all, err
}

// DeclareSchedule calls DeclareSchedule of the Scheduler; see inspect.
func (r *Ref) DeclareSchedule(ctx context.Context, d backends.Schedule, dry bool) (got backends.Declared, err error) {
	err = r.schedule(ctx, func(s backends.Scheduler) error { got, err = s.DeclareSchedule(ctx, d, dry); return err })
	return got, err
}

// ChangeSchedule calls ChangeSchedule of the Scheduler; see inspect.
func (r *Ref) ChangeSchedule(ctx context.Context, c backends.ScheduleCommand) (job string, err error) {
	err = r.schedule(ctx, func(s backends.Scheduler) error { job, err = s.ChangeSchedule(ctx, c); return err })
	return job, err
}

// FireSchedules calls FireSchedules of the current Backend, if it is a backends.Scheduler.
func (r *Ref) FireSchedules(ctx context.Context, expiry backends.QueueExpiry) (backends.FiredSchedules, error) {
	e, release := r.use()
	defer release()
	if s, ok := e.Backend.(backends.Scheduler); ok {
		return s.FireSchedules(ctx, expiry)
	}
	return backends.FiredSchedules{}, nil
}

// errNoBatcher is returned if the backend is not a backends.Batcher.
var errNoBatcher = errors.New("this database doesn't support batches")

// batch calls f with the Batcher; see inspect.
func (r *Ref) batch(ctx context.Context, f func(b backends.Batcher) error) error {
	look, release, err := r.inspect(ctx)
	if err != nil {
		return err
	}
	defer release()
	b, ok := look.(backends.Batcher)
	if !ok {
		return errNoBatcher
	}
	return f(b)
}

// OpenBatch calls OpenBatch of the Batcher; see inspect.
func (r *Ref) OpenBatch(ctx context.Context, n backends.NewBatch) (id string, existing bool, err error) {
	err = r.batch(ctx, func(b backends.Batcher) error { id, existing, err = b.OpenBatch(ctx, n); return err })
	return id, existing, err
}

// CloseBatch calls CloseBatch of the Batcher; see inspect.
func (r *Ref) CloseBatch(ctx context.Context, queue, id string) error {
	return r.batch(ctx, func(b backends.Batcher) error { return b.CloseBatch(ctx, queue, id) })
}

// CancelBatch calls CancelBatch of the Batcher; see inspect.
func (r *Ref) CancelBatch(ctx context.Context, c backends.BatchCancel) (got backends.CancelledBatch, err error) {
	err = r.batch(ctx, func(b backends.Batcher) error { got, err = b.CancelBatch(ctx, c); return err })
	return got, err
}

// Batches calls Batches of the Batcher; see inspect.
func (r *Ref) Batches(ctx context.Context, l backends.BatchList) (all []backends.Batch, err error) {
	err = r.batch(ctx, func(b backends.Batcher) error { all, err = b.Batches(ctx, l); return err })
	return all, err
}

// ResolveBatches calls ResolveBatches of the current Backend, if it is a backends.Batcher.
func (r *Ref) ResolveBatches(ctx context.Context, ids []string) (backends.ResolvedBatches, error) {
	e, release := r.use()
	defer release()
	if b, ok := e.Backend.(backends.Batcher); ok {
		return b.ResolveBatches(ctx, ids)
	}
	return backends.ResolvedBatches{}, nil
}

// Adopted reports whether the queue lives in a table that another application owns.
func (r *Ref) Adopted(queue string) bool {
	return r.mixed(func(m backends.Mixed) bool { return m.Adopted(queue) })
}

// Slow reports whether a statement for the queue's table took so long lately that other queues must not wait for it.
func (r *Ref) Slow(queue string) bool {
	return r.mixed(func(m backends.Mixed) bool { return m.Slow(queue) })
}

// HasAdopted reports whether the database can have queues in tables that another application owns.
func (r *Ref) HasAdopted() bool { return r.mixed(func(backends.Mixed) bool { return true }) }

// ClaimsInTx reports whether claims of the queue hold a transaction open.
func (r *Ref) ClaimsInTx(queue string) bool {
	return r.mixed(func(m backends.Mixed) bool { return m.ClaimsInTx(queue) })
}

// AdoptedTable returns the name of the queue's table, if the queue is in an adopted one.
func (r *Ref) AdoptedTable(queue string) (table string) {
	r.mixed(func(m backends.Mixed) bool { table = m.AdoptedTable(queue); return true })
	return table
}

// InTx reports whether the lease is held in a transaction.
func (r *Ref) InTx(lease backends.Lease) bool {
	return r.mixed(func(m backends.Mixed) bool { return m.InTx(lease) })
}

// mixed calls f if the current Backend has adopted tables. Otherwise it returns false.
func (r *Ref) mixed(f func(m backends.Mixed) bool) bool {
	r.mu.Lock()
	_, ok := r.current.Backend.(backends.Mixed)
	r.mu.Unlock()
	if !ok { // nearly always, and for each job
		return false
	}
	e, release := r.use()
	defer release()
	m, ok := e.Backend.(backends.Mixed)
	return ok && f(m)
}

// Obstacles returns what the database refuses.
func (r *Ref) Obstacles() []backends.Obstacle {
	e, release := r.use()
	defer release()
	if o, ok := e.Backend.(backends.Obstructed); ok {
		return o.Obstacles()
	}
	return nil
}

// Notifications calls wake with the names of queues in which other sidecars made jobs ready, until ctx is done. An
// empty name means that notifications were possibly missed.
func (r *Ref) Notifications(ctx context.Context, wake func(queue string)) {
	for ctx.Err() == nil {
		e, release := r.use()
		r.listen(ctx, e, wake)
		release()
		select {
		case <-e.replaced:
			wake("") // notifications between the two Backends were possibly missed
		case <-ctx.Done():
		}
	}
}

// listen passes on the notifications of e until e is replaced or ctx is done.
func (r *Ref) listen(ctx context.Context, e *endpoint, wake func(queue string)) {
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
			wake(q)
		case <-e.replaced:
			stop()
			for range queues { // e closes the channel when it ends
			}
			return
		}
	}
}

// ErrNoLocator is returned by Queues if the backend is not a backends.Locator.
var ErrNoLocator = errors.New("this database can't find the queue of another sidecar's lease: give the user a rule without `queues`")

// errNoInspector is returned if the backend is not a backends.Inspector.
var errNoInspector = errors.New("this database doesn't support inspection")

// Queues returns the queues of the leases' jobs.
func (r *Ref) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	e, release := r.use()
	defer release()
	locator, ok := e.Backend.(backends.Locator)
	if !ok {
		return nil, ErrNoLocator
	}
	return locator.Queues(ctx, leases)
}

// ReplicaStats returns the Stats of the replica. If there is no replica, or it can't answer, it returns those of the
// primary.
func (r *Ref) ReplicaStats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	if stats, ok := r.fromReplica(ctx, queue); ok {
		return stats, nil
	}
	return r.Stats(ctx, queue)
}

func (r *Ref) fromReplica(ctx context.Context, queue string) (stats []backends.QueueStats, ok bool) {
	e, release := r.use()
	defer release()
	id := e.Info().Database
	if e.replica == nil || id == "" { // without the primary's id it can't be compared
		return nil, false
	}
	stats, err := e.replica.Stats(ctx, id, queue)
	return stats, err == nil
}

// ReplicaErr returns why the replica gave no answer last, or nil.
func (r *Ref) ReplicaErr() error {
	e, release := r.use()
	defer release()
	if e.replica == nil {
		return nil
	}
	return e.replica.Err()
}

// Usage returns what the database's Backends have used so far: the current one and those that were replaced. ok is
// false if none of them counts its usage.
func (r *Ref) Usage() (u backends.Usage, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u, ok = r.current.usage()
	u.Add(r.past)
	for _, e := range r.inUse {
		was, metered := e.usage()
		u.Add(was)
		ok = ok || metered
	}
	return u, ok || r.past.RoundTrips.Count > 0
}

func (e *endpoint) usage() (u backends.Usage, ok bool) {
	if m, ok := e.Backend.(backends.Metered); ok {
		return m.Usage(), true
	}
	return u, false
}

// addPast keeps the usage of a Backend that is no longer in use. r.mu is held.
func (r *Ref) addPast(e *endpoint) {
	u, _ := e.usage()
	r.past.Add(u)
	r.inUse = slices.DeleteFunc(r.inUse, func(o *endpoint) bool { return o == e })
}

// timeoutError is the error of a query that the database did not answer in time. Status and the log show it.
type timeoutError time.Duration

func (t timeoutError) Error() string {
	return fmt.Sprintf("the database gave no answer within %v: see whether its host hangs, its disk is full, or the network to it is cut", time.Duration(t))
}

// Is makes the error match context.DeadlineExceeded.
func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// WithTimeout bounds a query to the database.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, timeoutError(d))
}
