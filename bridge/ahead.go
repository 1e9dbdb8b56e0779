package bridge

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Claiming ahead. A worker that claims one job at a time waits for two commits a
// job, the claim's and the ack's. Where a line of workers takes jobs at a steady
// rate, the next ones are claimed before they are asked for, so that only the
// ack's commit is waited for.
const (
	// aheadTime is how much of the line's consumption is claimed ahead. It covers a
	// few commits; more would only keep jobs from the workers of other hosts.
	aheadTime = 30 * time.Millisecond
	// aheadMost bounds the jobs that are claimed ahead for a line.
	aheadMost = 500
	// aheadBytes bounds their payloads.
	aheadBytes = 4 << 20
	// aheadInAll is what the payloads of all lines of a database may be for more to be claimed.
	aheadInAll = 32 << 20
	// aheadAge is how long a job may lie there before it goes back. The design allows a
	// second; workers of other hosts may be idle.
	aheadAge = 150 * time.Millisecond
	// recordAge is when the hand-out of such a job is recorded, unless it is settled.
	recordAge = 300 * time.Millisecond
	// attendEvery is how often the attendant looks, while there is something.
	attendEvery = 50 * time.Millisecond

	paceWindow = 10 * time.Millisecond
	paceIdle   = time.Second // a line without a claim for so long forgets its pace
)

// ahead is what is claimed ahead for one line. The broker's mu guards it.
type ahead struct {
	jobs   []aheadJob // in their order
	bytes  int64
	pace   pace
	asking bool // in the commit under way
	dry    bool // the last claim found less than it wanted
}

type aheadJob struct {
	backends.Job
	since time.Duration
}

// fitting is how many jobs, of at most n, have no more payload than an answer may have; one always does.
func (a *ahead) fitting(n int, most int64) int {
	n = min(n, len(a.jobs))
	for i := range n {
		if most -= int64(len(a.jobs[i].Payload)); most < 0 {
			return max(i, 1)
		}
	}
	return n
}

// wants is how many jobs to claim ahead now.
func (a *ahead) wants(now time.Duration) int {
	if a.asking || a.dry || a.bytes >= aheadBytes/2 {
		return 0
	}
	target := min(int(a.pace.perSecond(now)*aheadTime.Seconds()), aheadMost)
	if missing := target - len(a.jobs); missing > target/2 {
		return missing
	}
	return 0
}

// wantsAhead is how many slots of a claim go to the line's buffer. b.mu is held.
func (b *broker) wantsAhead(ln *line, room int) int {
	if !b.buffers || ln.direct || b.halted != nil || !b.mayKeep() {
		return 0
	}
	return max(0, min(ln.ahead.wants(b.clock()), room))
}

// busy reports whether the line must be kept although nobody waits in it: also while its pace is
// being learned. b.mu is held.
func (b *broker) busy(ln *line) bool {
	a := &ln.ahead
	return a.asking || len(a.jobs) > 0 || b.buffers && !ln.direct && a.pace.moves(b.clock())
}

// pace is the rate at which a line takes jobs: the lowest of the last windows, so
// that a burst (thirty workers that start at once and then work for seconds) is
// not taken for a stream.
type pace struct {
	since time.Duration // the present window's begin
	n     int
	rates [4]float64 // jobs per second, latest first
}

func (p *pace) took(n int, now time.Duration) {
	p.roll(now)
	p.n += n
}

func (p *pace) roll(now time.Duration) {
	took := now - p.since
	if took < paceWindow {
		return
	}
	copy(p.rates[1:], p.rates[:3])
	p.rates[0] = float64(p.n) / took.Seconds()
	if took > paceIdle {
		p.rates = [4]float64{}
	}
	p.since, p.n = now, 0
}

// moves reports whether a job was taken in the last windows, which are as long as it is from one look
// to the next.
func (p *pace) moves(now time.Duration) bool {
	p.roll(now)
	return p.n > 0 || slices.Max(p.rates[:]) > 0
}

func (p *pace) perSecond(now time.Duration) float64 {
	p.roll(now)
	return slices.Min(p.rates[:])
}

// fromAhead takes jobs for the waiter. A timed lease is written by its claim, and
// whoever reads slowly waits: those are not served from here. b.mu is held.
func (b *broker) fromAhead(ln *line, w *waiter) []backends.Job {
	a := &ln.ahead
	if len(a.jobs) == 0 || w.lease.Lease > 0 || w.sess.overloaded() {
		return nil
	}
	if host := b.fresh(); host == 0 || host != a.jobs[0].Token.Host {
		return nil // the attendant takes them back
	}
	n, _ := w.take(a.fitting(w.slots, b.most()))
	if n == 0 {
		return nil
	}
	jobs := make([]backends.Job, n)
	before := a.bytes
	for i := range jobs {
		jobs[i] = a.jobs[i].Job
		a.bytes -= int64(len(jobs[i].Payload))
	}
	b.keep(a.bytes - before)
	rest := copy(a.jobs, a.jobs[n:])
	clear(a.jobs[rest:])
	a.jobs = a.jobs[:rest]
	a.pace.took(n, b.clock())
	return jobs
}

// aheadOfOthers takes what was claimed ahead from the waiter's queues and cannot
// be given to it (it lies with another line, or the waiter's lease is timed), so
// that it does not find the queue empty because of this sidecar's own buffers. b.mu is held.
func (b *broker) aheadOfOthers(w *waiter) (out []backends.Job) {
	for _, q := range w.line.queues {
		for ln := range b.byQueue[q] {
			if len(ln.ahead.jobs) > 0 && (ln != w.line || w.lease.Lease > 0) {
				out = append(out, b.emptied(ln, 0)...)
				ln.ahead.pace = pace{since: b.clock()}
			}
		}
	}
	return out
}

// keepAhead keeps jobs for the line, after those who came meanwhile are served,
// and returns what must go back. b.mu is held.
func (b *broker) keepAhead(ln *line, jobs []backends.Job) (back []backends.Job) {
	if len(jobs) == 0 {
		return nil
	}
	if b.halted != nil {
		b.leaves(jobs)
		return jobs
	}
	now, before := b.clock(), ln.ahead.bytes
	for i := range jobs {
		ln.ahead.jobs = append(ln.ahead.jobs, aheadJob{Job: jobs[i], since: now})
		ln.ahead.bytes += int64(len(jobs[i].Payload))
	}
	b.keep(ln.ahead.bytes - before)
	for w := range ln.waiters {
		if len(ln.ahead.jobs) == 0 {
			break
		}
		if w.asking {
			continue
		}
		if got := b.fromAhead(ln, w); len(got) > 0 {
			b.remove(w)
			w.sess.load(got)
			w.answer <- answer{jobs: got, ahead: true}
		}
	}
	if b.lines[ln.key] != ln { // dropped meanwhile: nobody would look here
		return b.emptied(ln, 0)
	}
	b.attend(ln)
	return nil
}

// emptied takes the jobs that lie there since before limit (0: all). b.mu is held.
func (b *broker) emptied(ln *line, limit time.Duration) (out []backends.Job) {
	a := &ln.ahead
	n, before := 0, a.bytes
	for n < len(a.jobs) && (limit == 0 || a.jobs[n].since < limit) {
		out = append(out, a.jobs[n].Job)
		a.bytes -= int64(len(a.jobs[n].Payload))
		n++
	}
	a.jobs = slices.Delete(a.jobs, 0, n)
	b.keep(a.bytes - before)
	b.leaves(out)
	return out
}

// leaves counts jobs that nobody has and that go back. b.mu is held.
func (b *broker) leaves(jobs []backends.Job) {
	for i := range jobs {
		b.back[jobs[i].Queue]++
	}
}

// comesBack reports whether a job of one of the queues is on its way back. b.mu is held.
func (b *broker) comesBack(queues []string) bool {
	return slices.ContainsFunc(queues, func(q string) bool { return b.back[q] > 0 })
}

// areBack ends the way of jobs, whose queues these are: a claim that found none of them looks again.
func (b *broker) areBack(queues []string) {
	b.mu.Lock()
	for _, q := range queues {
		if b.back[q]--; b.back[q] <= 0 {
			delete(b.back, q)
		}
		for ln := range b.byQueue[q] {
			ln.again()
		}
	}
	b.mu.Unlock()
	b.hint(queues, 1)
}

// takeAhead takes what has been lying there since before limit (0: everything)
// from all lines, and drops those that are idle.
func (b *broker) takeAhead(limit time.Duration) (out []backends.Job, left bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock()
	for ln := range b.attends {
		back := b.emptied(ln, limit)
		if len(back) > 0 {
			out = append(out, back...)
			ln.ahead.pace = pace{since: now} // claimed for nobody: begin again
		}
		if ln.len() > 0 { // who reads too slowly leaves jobs there
			if len(ln.ahead.jobs) > 0 {
				left = true
			} else {
				delete(b.attends, ln)
			}
			continue
		}
		if b.busy(ln) {
			left = true
		} else {
			b.drop(ln)
		}
	}
	return out, left
}

// attendant looks after what was claimed ahead: it gives back what lies too long,
// and records hand-outs.
type attendant struct {
	broker    *broker
	ledger    *ledger
	committer *committer
	poke      chan struct{} // 1: one wish is enough
}

func (a *attendant) wake() {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// run attends until ctx is done, then finishes. It sleeps while
// nothing is claimed ahead.
func (a *attendant) run(ctx context.Context) {
	tick := time.NewTicker(attendEvery)
	defer tick.Stop()
	for {
		select {
		case <-a.poke:
		case <-ctx.Done():
			a.finish()
			return
		}
		for left := true; left; {
			select {
			case <-tick.C:
				left = a.attend()
			case <-ctx.Done():
				a.finish()
				return
			}
		}
	}
}

// finish gives back what is claimed ahead, and records the hand-outs that it did not
// record yet: an attempt counts at delivery, and this identity settles no more.
func (a *attendant) finish() {
	a.giveBack(0)
	for more := true; more; {
		more = a.record(math.MaxInt64)
	}
}

func (a *attendant) attend() (left bool) {
	now := a.broker.clock()
	limit := now - aheadAge
	if a.broker.fresh() == 0 {
		limit = 0 // the beat is late: nothing is handed out, so nothing is kept
	}
	left = a.giveBack(limit)
	more := a.record(now - recordAge)
	return left || more
}

// record records the hand-outs from before limit and reports whether there are more.
func (a *attendant) record(limit time.Duration) (more bool) {
	handed, more := a.ledger.unrecorded(limit)
	if len(handed) > 0 {
		// No client waits for it. A lost one was settled before.
		a.committer.pushFree(backends.Deliver{Deliveries: handed}, nil)
	}
	return more
}

func (a *attendant) giveBack(limit time.Duration) (left bool) {
	jobs, left := a.broker.takeAhead(limit)
	a.giveBackJobs(jobs)
	return left
}

// giveBackJobs returns jobs that were claimed ahead.
func (a *attendant) giveBackJobs(jobs []backends.Job) {
	for len(jobs) > 0 { // by host: an identity may have changed meanwhile
		host := jobs[0].Token.Host
		n := 0
		for n < len(jobs) && jobs[n].Token.Host == host {
			n++
		}
		a.committer.giveBack(host, jobs[:n])
		jobs = jobs[n:]
	}
}
