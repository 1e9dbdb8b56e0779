package bridge

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// maxSlots bounds one claim statement: far more than the workers of one host
// take at a time, and small enough for any engine.
const maxSlots = 1000

// broker holds the claims of one database that are not answered yet, and decides
// which of them the next commit asks for.
//
// A waiter is asked for once when it comes (so that an empty answer is always
// the database's), and again when its line was hinted at and it is its turn:
// a hint says that one of the line's queues may have got ready jobs, and about how many.
type broker struct {
	wake     func()                   // the committer's
	fresh    func() backends.Identity // the keeper's
	clock    func() time.Duration
	buffers  bool                    // the backend knows how to claim ahead
	direct   func(queue string) bool // never from that queue; nil: from all
	buffered func()                  // the attendant's: there is something to look after
	memory   *buffers                // nil: what is claimed ahead is not counted
	most     func() int64            // payload bytes of an answer

	mu      sync.Mutex
	lines   map[string]*line
	byQueue map[string]map[*line]struct{}
	back    map[string]int     // jobs on their way back to the database, by queue
	due     []*line            // to be asked for, in turn, so that no line starves when slots are short
	attends map[*line]struct{} // the attendant's: all that have jobs claimed ahead, and those to be dropped soon
	kept    kept
	halted  error // not nil: every claim is answered with it (draining)
}

// errMoved ends the wait of a claim whose queues are not served from this database any
// more.
var errMoved = errors.New("a reload moved the queue")

// waiter is one claim request.
type waiter struct {
	sess   *account
	slots  int
	since  time.Time     // when it was asked
	lease  backends.Slot // the template: lease kind and worker
	once   bool          // wait_ms 0: answered after one look
	line   *line
	queues []string      // the line's
	in     *list.List    // of the line's
	at     *list.Element // of in
	places int           // taken of the session's, for the jobs of the commit under way, or of the answer
	asking bool          // in the commit under way
	left   bool          // answered as soon as the commit under way ends
	failed error         // why the last look failed; nil: it did not
	moved  error         // errMoved, as soon as its queues are not served here

	answer chan answer // 1: the answer waits for its reader, never the other way round
}

// answer ends a waiter.
type answer struct {
	jobs  []backends.Job
	ahead bool // claimed ahead: the hand-out is not recorded yet
	err   error
}

func newBroker(wake func()) *broker {
	return &broker{wake: wake, lines: make(map[string]*line), byQueue: make(map[string]map[*line]struct{}), attends: make(map[*line]struct{}), back: make(map[string]int)}
}

// add answers a waiter with what is claimed ahead for its line; else it queues it,
// and answered is false.
func (b *broker) add(w *waiter, queues []string) (a answer, answered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.halted != nil {
		return answer{err: b.halted}, true
	}
	ln := b.line(queues)
	if jobs := b.fromAhead(ln, w); len(jobs) > 0 {
		w.sess.load(jobs)
		if ln.ahead.wants(b.clock()) > 0 {
			b.push(ln)
			b.wake()
		}
		return answer{jobs: jobs, ahead: true}, true
	}
	w.answer = make(chan answer, 1)
	w.line, w.queues = ln, ln.queues
	w.in, w.at = &ln.fresh, ln.fresh.PushBack(w)
	b.push(ln)
	b.wake()
	return answer{}, false
}

// line finds or makes the line for the queues, which it does not keep. b.mu is held.
func (b *broker) line(queues []string) *line {
	key := strings.Join(queues, ",") // no queue name has a comma
	ln := b.lines[key]
	if ln != nil {
		return ln
	}
	queues = once(queues)
	ln = &line{key: key, queues: queues, direct: b.isDirect(queues)}
	b.lines[key] = ln
	for _, q := range queues {
		set := b.byQueue[q]
		if set == nil {
			set = make(map[*line]struct{})
			b.byQueue[q] = set
		}
		set[ln] = struct{}{}
	}
	return ln
}

// once are the queues in their order, each once.
func once(queues []string) []string {
	seen := make(map[string]struct{}, len(queues))
	var all []string
	for _, q := range queues {
		if _, twice := seen[q]; !twice {
			seen[q] = struct{}{}
			all = append(all, q)
		}
	}
	return all
}

// leave asks for the waiter's answer now. It comes at once, or with the commit
// under way, and may still bring jobs.
func (b *broker) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case w.line == nil: // answered already
	case w.asking:
		w.left = true
	default:
		b.remove(w)
		w.answer <- answer{err: w.failed}
	}
}

// remove takes the waiter out of its line. b.mu is held.
func (b *broker) remove(w *waiter) {
	ln := w.line
	w.line = nil
	w.in.Remove(w.at)
	if ln.len() == 0 && !ln.ahead.asking { // else the end of the ask tidies
		b.tidy(ln)
	}
}

// drop forgets a line that nobody waits in. b.mu is held.
func (b *broker) drop(ln *line) {
	delete(b.lines, ln.key)
	delete(b.attends, ln)
	for _, q := range ln.queues {
		set := b.byQueue[q]
		delete(set, ln)
		if len(set) == 0 {
			delete(b.byQueue, q)
		}
	}
}

// hint says that the queues may have about so many ready jobs each, and wakes the committer when
// somebody waits for one of them.
func (b *broker) hint(queues []string, each int) {
	if len(queues) == 0 {
		return
	}
	if b.mark(queues, each) {
		b.wake()
	}
}

func (b *broker) mark(queues []string, each int) (wanted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range queues {
		for ln := range b.byQueue[q] {
			ln.hint++
			ln.ahead.dry = false
			if ln.len() > 0 {
				wanted = true
				ln.wish = min(ln.wish+max(each, 1), maxSlots)
			}
			if b.needs(ln) {
				b.push(ln)
			}
		}
	}
	return wanted
}

// waiting lists the queues that somebody waits for.
func (b *broker) waiting() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]string, 0, len(b.byQueue))
	for q, lines := range b.byQueue {
		for ln := range lines {
			if ln.len() > 0 {
				out = append(out, q)
				break
			}
		}
	}
	return out
}

// settle ends an ask with what the database gave: jobs for its waiters first, then
// those claimed ahead. It returns the ones that must go back.
func (b *broker) settle(a ask, res backends.ClaimResult) (back []backends.Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	jobs := res.Jobs
	again := a.learn(res) && b.halted == nil
	for _, w := range a.waiters {
		w.asking = false
		w.failed = nil
		asked := w.slots
		if w.lease.Lease == 0 {
			asked = w.places
		}
		n := min(asked, len(jobs))
		if n > 0 {
			b.remove(w)
			w.sess.load(jobs[:n])
			w.answer <- answer{jobs: jobs[:n:n]}
			if w.lease.Lease == 0 { // timed ones are not served from ahead
				a.line.ahead.pace.took(n, b.clock())
			}
			jobs = jobs[n:]
			continue
		}
		w.unanswered()
		if !res.More {
			a.line.look(w)
			if !w.left {
				back = append(back, b.aheadOfOthers(w)...)
			}
			if w.once && !w.left && b.halted == nil && b.comesBack(w.queues) {
				a.line.put(w, &a.line.stay) // the database did not see a job that nobody has
				continue
			}
		}
		if w.left && (!again || w.moved != nil) || w.once && !res.More {
			b.remove(w)
			w.answer <- answer{err: cmp.Or(b.halted, w.moved)}
		}
	}
	dry := len(res.Jobs) < len(a.slots) && !res.More
	a.line.asked(a, dry)
	a.line.ahead.asking, a.line.ahead.dry = false, dry
	back = append(back, b.keepAhead(a.line, jobs)...)
	b.tidy(a.line)
	return back
}

// fail ends an ask that the database did not answer. Those who asked for one
// look get the error; those who wait go on waiting, and get it only when their
// wait ends before a look succeeds.
func (b *broker) fail(a ask, err error) { b.failed(a, err, false) }

// failAlone is fail for an ask that was answered with an error by itself, where the
// database is otherwise well: who waits is asked for again when there is a hint.
func (b *broker) failAlone(a ask, err error) { b.failed(a, err, true) }

func (b *broker) failed(a ask, err error, looked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if looked {
		a.line.asked(a, true)
	} else {
		a.line.wish = min(max(a.line.wish, len(a.slots)), maxSlots) // they are asked for again
	}
	a.line.ahead.asking = false
	defer b.tidy(a.line)
	for _, w := range a.waiters {
		w.asking = false
		w.unanswered()
		if looked {
			a.line.look(w)
		}
		w.failed = err
		mayPass := backends.Retryable(err) || errors.Is(err, backends.ErrUnknownOutcome)
		if w.left || w.once || !mayPass {
			b.remove(w)
			w.answer <- answer{err: cmp.Or(w.moved, err)}
		}
	}
}

// refuse answers those who asked for one look: nothing can be claimed now.
func (b *broker) refuse(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ln := range b.lines {
		for w := range ln.waiters {
			if w.asking {
				continue
			}
			w.failed = err
			if w.once {
				b.remove(w)
				w.answer <- answer{err: err}
			}
		}
	}
}

// halt answers every claim, now and from now on, with err.
func (b *broker) halt(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.halted = err
	for _, ln := range b.lines {
		for w := range ln.waiters {
			w.failed = err
			if w.asking {
				w.left = true
				continue
			}
			b.remove(w)
			w.answer <- answer{err: err}
		}
	}
}

// evict ends waits with errMoved: those in lines that are not served here any more, whose
// jobs claimed ahead it returns, and those of sessions that may not claim there any more.
func (b *broker) evict(served func(queues []string) bool) (back []backends.Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ln := range b.lines {
		ln.direct = b.isDirect(ln.queues)
		stays := served(ln.queues)
		if !stays {
			back = append(back, b.emptied(ln, 0)...)
		}
		for w := range ln.waiters {
			if stays && w.sess.client.mayClaim(ln.queues) {
				continue
			}
			w.moved = errMoved
			if w.asking {
				w.left = true
				continue
			}
			b.remove(w)
			w.answer <- answer{err: errMoved}
		}
	}
	return back
}

func (b *broker) isDirect(queues []string) bool {
	return b.direct != nil && slices.ContainsFunc(queues, b.direct)
}

// wait returns the waiter's answer; stop (the end of its wait, a cancel, a
// hang-up) asks for it early.
func (b *broker) wait(ctx context.Context, w *waiter) answer {
	select {
	case a := <-w.answer:
		return a
	case <-ctx.Done():
		b.leave(w)
		return <-w.answer
	}
}

// snapshot counts what waits, and what is claimed ahead.
func (b *broker) snapshot() (s snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.waitQueues, s.stopped = len(b.lines), b.halted != nil
	for _, ln := range b.lines {
		s.claims += ln.len()
		s.prefetched += len(ln.ahead.jobs)
		if ln.wish == 0 && !ln.ahead.asking {
			s.idleClaims += ln.idle.Len()
		}
	}
	return s
}
