package backends

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Obstacle is something that the database refuses although it has to happen: a trigger, a constraint, a right or a
// missing column is in the way. It stops nothing else. The Backend tries it again rarely, until it succeeds.
type Obstacle struct {
	Queue   string // empty: a table of the sidecar itself
	Table   string // as its owner names it; empty: qsidecar_jobs
	Job     string // empty: the whole queue
	Doing   string // one of the constants below
	Err     error  // the database's error, which names the constraint or column
	Since   time.Time
	NextTry time.Time // like Since by this host's clock
}

// Values of Obstacle.Doing.
const (
	DoingClaim    = "claim"
	DoingGiveBack = "give back" // a job whose claim has ended
	DoingPromote  = "promote"
	DoingPrune    = "prune"
	DoingExpire   = "expire" // a job whose time to start is over
	DoingReset    = "reset"  // a row that its own consumers claimed for longer than stuck_after
	DoingSettle   = "settle"
	DoingEnqueue  = "enqueue"
	DoingShare    = "share commits with" // other queues: a statement takes too long
	DoingUse      = "use"                // a table of the sidecar itself; the obstacle has no queue
)

// Obstructed is a Backend that remembers what its database refuses.
type Obstructed interface {
	// Obstacles returns the present obstacles, the oldest first. It sends nothing to the server.
	Obstacles() []Obstacle
}

// Rechecker is a Backend that remembers what its database refuses because of a right or of how a table is.
type Rechecker interface {
	// Recheck finds out at once what has changed about that, as far as queries can show it. It returns no error: what can't be
	// found out stays as it was.
	Recheck(ctx context.Context)
}

const (
	// MaxObstacles is how many obstacles of single jobs an ObstacleSet remembers of each queue.
	MaxObstacles = 1000

	// firstObstacleDelay is the time to the second try. It doubles with each try, up to lastObstacleDelay.
	firstObstacleDelay = 5 * time.Second
	lastObstacleDelay  = 5 * time.Minute
	// lastQueueDelay is lastObstacleDelay for a whole queue, whose table its owner corrects.
	lastQueueDelay = 15 * time.Second

	// loggedObstacles is how many jobs of one queue and kind are logged, each in a line. Status counts all of them.
	loggedObstacles = 10
)

// ObstacleSet remembers obstacles, decides when to try again, and logs when each begins and ends. The zero value is
// ready for use. Its methods can be called concurrently.
type ObstacleSet struct {
	Log     *slog.Logger     // nil: logs nothing
	Address string           // of the database, in the log
	Now     func() time.Time // nil: time.Now

	some atomic.Bool // mirrors len(all) > 0, so that a Backend without obstacles takes no lock
	mu   sync.Mutex
	all  map[obstacleKey]*obstacle
}

// obstacleKey identifies an obstacle. table is empty unless it is one of the sidecar itself.
type obstacleKey struct{ queue, job, doing, table string }

func keyOf(o *Obstacle) obstacleKey {
	k := obstacleKey{queue: o.Queue, job: o.Job, doing: o.Doing}
	if o.Queue == "" {
		k.table = o.Table
	}
	return k
}

type obstacle struct {
	Obstacle
	delay  time.Duration
	noted  time.Time // last
	logged bool
}

// Note records that the database refused o, whose Since and NextTry are ignored. It returns the time of the next try.
// If the queue has too many obstacles, the whole queue becomes one instead of the job.
func (s *ObstacleSet) Note(o Obstacle) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	k := keyOf(&o)
	e := s.all[k]
	if e == nil && o.Job != "" && s.full(o.Queue) {
		o.Job, k.job = "", ""
		e = s.all[k]
	}
	if e == nil {
		e = &obstacle{Obstacle: o, delay: firstObstacleDelay / 2}
		e.Since = now
		if s.all == nil {
			s.all = map[obstacleKey]*obstacle{}
		}
		s.log(e)
		s.all[k] = e
		s.some.Store(true)
	}
	e.Table, e.Err = o.Table, o.Err
	if !now.Before(e.NextTry) { // two callers can have tried at once
		last := lastObstacleDelay
		if o.Job == "" {
			last = lastQueueDelay
		}
		e.delay = min(2*e.delay, last)
	}
	e.noted, e.NextTry = now, now.Add(e.delay)
	return e.NextTry
}

// NoteJob is Note for a job, unless its queue has too many obstacles. It reports whether it noted the job.
func (s *ObstacleSet) NoteJob(o Obstacle) bool {
	s.mu.Lock()
	room := s.all[keyOf(&o)] != nil || !s.full(o.Queue)
	s.mu.Unlock()
	if room {
		s.Note(o)
	}
	return room
}

// full reports whether no other job of a queue can be noted. s.mu is held.
func (s *ObstacleSet) full(queue string) bool {
	n := 0
	for k := range s.all {
		if k.queue == queue && k.job != "" {
			n++
		}
	}
	return n >= MaxObstacles
}

// log logs a new obstacle, if not too many others of its kind are logged. If a whole queue is out of order, one line
// is enough for all that can't be done. s.mu is held.
func (s *ObstacleSet) log(e *obstacle) {
	n, whole := 0, false
	for _, other := range s.all {
		if !other.logged || other.Queue != e.Queue || e.Queue == "" && other.Table != e.Table {
			continue
		}
		whole = whole || other.Job == ""
		if other.Doing == e.Doing {
			n++
		}
	}
	if e.logged = e.Job == "" && !whole || e.Job != "" && n < loggedObstacles; e.logged && s.Log != nil {
		log := s.Log.With(e.names()...)
		log.Warn("database refuses a part of the work", "event", "obstacle_found", "address", s.Address, "error", e.Err)
	}
}

// names are the keys of the log that identify the obstacle.
func (o *obstacle) names() []any {
	all := []any{"doing", o.Doing}
	if o.Queue != "" {
		all = append(all, "queue", o.Queue)
	}
	if o.Table != "" {
		all = append(all, "table", o.Table)
	}
	if o.Job != "" {
		all = append(all, "job", o.Job)
	}
	return all
}

// Clear records that something succeeded, or is no longer to be done.
func (s *ObstacleSet) Clear(queue, job, doing string) {
	if s.some.Load() {
		k := obstacleKey{queue: queue, job: job, doing: doing}
		s.remove(func(key obstacleKey, _ *obstacle) bool { return key == k })
	}
}

// Keep removes the obstacles that don't meet a condition, for example those of a queue that left the config.
func (s *ObstacleSet) Keep(keep func(o *Obstacle) bool) {
	if s.some.Load() {
		s.remove(func(_ obstacleKey, e *obstacle) bool { return !keep(&e.Obstacle) })
	}
}

// Tried removes the obstacles that were due before began, meet a condition, and were not noted again since: what was
// to be done succeeded, or is no longer to be done. The caller has tried everything that was due, from began on.
func (s *ObstacleSet) Tried(began time.Time, of func(o *Obstacle) bool) {
	if s.some.Load() {
		s.remove(func(_ obstacleKey, e *obstacle) bool {
			return !e.NextTry.After(began) && e.noted.Before(began) && of(&e.Obstacle)
		})
	}
}

func (s *ObstacleSet) remove(which func(obstacleKey, *obstacle) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, e := range s.all {
		if !which(k, e) {
			continue
		}
		delete(s.all, k)
		if e.logged && s.Log != nil {
			log := s.Log.With(e.names()...)
			log.Info("database accepts a part of the work again", "event", "obstacle_gone", "address", s.Address)
		}
	}
	s.some.Store(len(s.all) > 0)
}

// Some reports whether there are obstacles. It costs nothing.
func (s *ObstacleSet) Some() bool { return s.some.Load() }

// Waits reports whether something must not be tried yet. It costs nothing without obstacles.
func (s *ObstacleSet) Waits(queue, job, doing string) bool {
	if !s.some.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[obstacleKey{queue: queue, job: job, doing: doing}]
	return e != nil && s.now().Before(e.NextTry)
}

// Has reports whether something is an obstacle, due or not. It costs nothing without obstacles.
func (s *ObstacleSet) Has(queue, job, doing string) bool {
	if !s.some.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[obstacleKey{queue: queue, job: job, doing: doing}] != nil
}

// Due reports whether something is an obstacle that was due at a time.
func (s *ObstacleSet) Due(queue, job, doing string, at time.Time) bool {
	if !s.some.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[obstacleKey{queue: queue, job: job, doing: doing}]
	return e != nil && !e.NextTry.After(at)
}

// Jobs returns how many jobs something is refused with. A query for jobs has to find so many more, to find others.
func (s *ObstacleSet) Jobs(doing string) (n int) {
	if !s.some.Load() {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.all {
		if k.doing == doing && k.job != "" {
			n++
		}
	}
	return n
}

// Waiting returns the jobs with which something must not be tried yet, and the queues. Without queues, it returns
// those of every queue.
func (s *ObstacleSet) Waiting(doing string, of ...string) (jobs, queues []string) {
	if !s.some.Load() {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, e := range s.all {
		switch {
		case e.Doing != doing || !now.Before(e.NextTry) || len(of) > 0 && !slices.Contains(of, e.Queue):
		case e.Job == "":
			queues = append(queues, e.Queue)
		default:
			jobs = append(jobs, e.Job)
		}
	}
	slices.Sort(jobs)
	slices.Sort(queues)
	return jobs, queues
}

// Any reports whether an obstacle meets a condition. It costs nothing without obstacles.
func (s *ObstacleSet) Any(is func(o *Obstacle) bool) bool {
	if !s.some.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.all {
		if is(&e.Obstacle) {
			return true
		}
	}
	return false
}

// Find returns an obstacle, or nil. It costs nothing without obstacles.
func (s *ObstacleSet) Find(queue, job, doing string) *Obstacle {
	if !s.some.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.all[obstacleKey{queue: queue, job: job, doing: doing}]; e != nil {
		o := e.Obstacle
		return &o
	}
	return nil
}

// JobsOf returns the jobs of a queue with which something is refused, and those of them that are due.
func (s *ObstacleSet) JobsOf(doing, queue string) (all, due []string) {
	if !s.some.Load() {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, e := range s.all {
		if e.Doing != doing || e.Queue != queue || e.Job == "" {
			continue
		}
		all = append(all, e.Job)
		if !now.Before(e.NextTry) {
			due = append(due, e.Job)
		}
	}
	slices.Sort(all)
	slices.Sort(due)
	return all, due
}

// RetryNow makes the obstacles of a queue and kind due, because something changed that can have ended them.
func (s *ObstacleSet) RetryNow(queue, doing string) {
	if !s.some.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, e := range s.all {
		if e.Queue == queue && e.Doing == doing && e.NextTry.After(now) {
			e.NextTry = now
		}
	}
}

// Obstacles implements Obstructed.
func (s *ObstacleSet) Obstacles() []Obstacle {
	if !s.some.Load() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Obstacle, 0, len(s.all))
	for _, e := range s.all {
		all = append(all, e.Obstacle)
	}
	slices.SortFunc(all, func(a, b Obstacle) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Doing, b.Doing))
	})
	return all
}

// Inherit adds the obstacles of another set, without a line in the log. Those that it has already stay.
func (s *ObstacleSet) Inherit(other *ObstacleSet) {
	if s == other || !other.some.Load() {
		return
	}
	other.mu.Lock()
	inherited := make(map[obstacleKey]obstacle, len(other.all))
	for k, e := range other.all {
		inherited[k] = *e
	}
	other.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[obstacleKey]*obstacle{}
	}
	for k, e := range inherited {
		if s.all[k] == nil {
			s.all[k] = &e
		}
	}
	s.some.Store(len(s.all) > 0)
}

// Time returns the present time of the set's clock.
func (s *ObstacleSet) Time() time.Time { return s.now() }

func (s *ObstacleSet) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}
