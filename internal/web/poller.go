package web

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	pollEvery    = time.Second      // while a browser is connected
	sampleEvery  = time.Minute      // for the plots, after the last visit
	watchedFor   = 10 * time.Second // after a request, a browser counts as connected
	sampledFor   = time.Hour        // after the last visit
	historyEvery = 10 * time.Second // the history, while a browser is connected
	restFactor   = 20               // the poller rests that many times as long as a reading of the statistics took
	pollTimeout  = 30 * time.Second
	firstWait    = 3 * time.Second // for the first reading, or a newer one
)

// snapshot is what the poller read last. It doesn't change.
type snapshot struct {
	Status    *protocol.Status // nil: not read yet
	StatusErr error            // of the last reading
	Queues    []protocol.QueueStat
	QueuesAt  time.Time // of the last reading that succeeded; zero: none did
	StatsErr  error     // of the last reading
	at        time.Time // of the last reading of the status

	History   map[string]*protocol.QueueHistory // by queue; "": the sum of all
	HistoryAt time.Time                         // of the last reading, also if it failed
}

// historyOf returns the history of a queue.
func (s *snapshot) historyOf(queue string) *protocol.QueueHistory {
	if h := s.History[queue]; h != nil {
		return h
	}
	since := s.at.UnixMilli()
	if all := s.History[""]; all != nil {
		since = all.Since
	}
	return &protocol.QueueHistory{Queue: queue, Since: since}
}

// queue returns the statistics of a queue. They are 0 if it has no job.
func (s *snapshot) queue(name string) protocol.QueueStat {
	for _, q := range s.Queues {
		if q.Queue == name {
			return q
		}
	}
	return protocol.QueueStat{Queue: name}
}

// poller reads the status and the statistics for all browsers. It runs from a visit to an hour after the last one.
type poller struct {
	ctx context.Context
	wg  *sync.WaitGroup
	do  func(context.Context, *protocol.Request) (*protocol.Reply, error)

	mu           sync.Mutex
	closed       bool
	running      bool
	wake         chan struct{} // capacity 1: read now
	changed      chan struct{} // closed at the next snapshot
	last         snapshot
	visited      time.Time // time of the last visit
	viewers      int       // open event streams
	reading      bool      // the statistics are being read
	due          time.Time // when to read the statistics again
	readsHistory bool      // the history is being read
}

func newPoller(ctx context.Context, wg *sync.WaitGroup, do func(context.Context, *protocol.Request) (*protocol.Reply, error)) *poller {
	return &poller{ctx: ctx, wg: wg, do: do, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// visit records that a browser asked for something, and starts the poller if it doesn't run.
func (p *poller) visit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.visited = time.Now()
	if p.closed {
		return
	}
	if !p.running {
		p.running = true
		p.wg.Go(p.run)
	} else if time.Since(p.last.at) > 2*pollEvery {
		p.wakeUp()
	}
}

// refresh makes the poller read now, after a change. A reading that takes long keeps its rest.
func (p *poller) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Until(p.due) <= pollEvery {
		p.due = time.Time{}
	}
	p.wakeUp()
}

func (p *poller) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// current returns the last snapshot. It waits a little for the first one, and for a newer one after a pause.
func (p *poller) current(ctx context.Context) snapshot {
	p.visit()
	timer := time.NewTimer(firstWait)
	defer timer.Stop()
	for {
		s, changed := p.get()
		if s.complete() && !p.behind() {
			return s
		}
		select {
		case <-changed:
		case <-timer.C:
			return s
		case <-ctx.Done():
			return s
		case <-p.ctx.Done():
			return s
		}
	}
}

// behind reports whether the poller is about to read something that it has not read for some time.
func (p *poller) behind() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	due := p.reading || !time.Now().Before(p.due)
	return time.Since(p.last.at) > 3*pollEvery || due && p.last.StatsErr == nil && time.Since(p.last.QueuesAt) > 3*pollEvery
}

// complete reports whether all parts were read, or failed.
func (s *snapshot) complete() bool {
	return (s.Status != nil || s.StatusErr != nil) && (!s.QueuesAt.IsZero() || s.StatsErr != nil) && !s.HistoryAt.IsZero()
}

// get returns the last snapshot, and a channel that is closed at the next one.
func (p *poller) get() (s snapshot, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.changed
}

// watch counts an event stream. Call end when it ends.
func (p *poller) watch() (end func()) {
	p.visit()
	p.mu.Lock()
	p.viewers++
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		p.viewers--
		p.visited = time.Now()
		p.mu.Unlock()
	}
}

// close keeps the poller from being started again.
func (p *poller) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
}

func (p *poller) run() {
	for {
		p.readStatus()
		pause, ok := p.plan()
		if !ok {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-p.wake:
		case <-p.ctx.Done():
		}
		timer.Stop()
	}
}

// plan starts to read the statistics if it is time, and returns when to go on. Without visitors for an hour, ok is
// false.
func (p *poller) plan() (pause time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := time.Since(p.visited)
	if p.ctx.Err() != nil || p.viewers == 0 && idle > sampledFor {
		p.running = false
		return 0, false
	}
	if !p.reading && !time.Now().Before(p.due) {
		p.reading = true
		p.wg.Go(p.readQueues)
	}
	if !p.readsHistory && time.Since(p.last.HistoryAt) >= historyEvery {
		p.readsHistory = true
		p.wg.Go(p.readHistory)
	}
	if p.viewers == 0 && idle > watchedFor {
		return sampleEvery, true
	}
	return pollEvery, true
}

func (p *poller) readStatus() {
	rep, err := p.ask(protocol.OpStatus)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last.at, p.last.StatusErr = time.Now(), err
	if err == nil {
		p.last.Status = rep.Status
	}
	p.publish()
}

func (p *poller) readQueues() {
	began := time.Now()
	rep, err := p.ask(protocol.OpStats)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.reading, p.due = false, now.Add(max(pollEvery/2, restFactor*now.Sub(began)))
	if p.last.StatsErr = err; err == nil {
		p.last.Queues, p.last.QueuesAt = rep.Queues, now
	}
	p.publish()
}

// readHistory reads what the sidecar recorded.
func (p *poller) readHistory() {
	rep, err := p.ask(protocol.OpHistory)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readsHistory, p.last.HistoryAt = false, time.Now()
	if err == nil {
		p.last.History = make(map[string]*protocol.QueueHistory, len(rep.History))
		for i := range rep.History {
			p.last.History[rep.History[i].Queue] = &rep.History[i]
		}
	}
	p.publish()
}

// publish wakes the requests that wait for a snapshot. p.mu is held.
func (p *poller) publish() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// ask sends one of the poller's requests.
func (p *poller) ask(op protocol.Op) (*protocol.Reply, error) {
	ctx, cancel := context.WithTimeoutCause(p.ctx, pollTimeout, errors.New("the sidecar did not answer within 30 s"))
	defer cancel()
	return p.do(ctx, &protocol.Request{Op: op})
}
