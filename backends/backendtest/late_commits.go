package backendtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testseed"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Producer is another program, with one transaction at a time.
type Producer struct {
	Begin func()
	// Insert stores a job for each payload as the documented statement does. old: their
	// positions are from well before it, as of a statement that was held up, or of a
	// peer whose clock is behind; engines whose positions are no instants ignore it.
	Insert func(queue string, payloads []string, old bool)
	End    func(commit bool)
}

// late has what claims may pass: what others commit late.
var late = map[string]func(*kit){
	"EveryCommittedJobIsClaimable": func(k *kit) {
		if k.Producer == nil {
			return
		}
		rounds := 60
		if testing.Short() {
			rounds = 8
		}
		x := interleaving{kit: k, handles: []backends.Backend{k.Backend, k.Again()}, waiting: map[string]bool{}, number: testseed.Rand(k).IntN}
		for range 3 {
			x.producers = append(x.producers, k.Producer())
		}
		for round := range rounds {
			x.round()
			x.drain(round)
		}
	},
}

// interleaving is a random order of what producers, workers and maintenance do.
type interleaving struct {
	*kit
	handles   []backends.Backend
	handle    backends.Backend // which one claims in this round
	producers []Producer
	number    func(n int) int
	made      int
	open      []*producing
	busy      bool            // much else is done in this round
	waiting   map[string]bool // committed and not claimed, by payload
	later     []string        // payloads of scheduled jobs
	held      []backends.Job
}

// producing is an open transaction, and what it inserted.
type producing struct {
	Producer
	left     int // how often it is to insert
	inserted []string
}

// round has two or three producers begin, insert and end, and workers claim between
// their steps. What else the sidecar writes is rare in most rounds, because its commits
// tell cursors which transactions are under way.
func (x *interleaving) round() {
	x.Helper()
	x.handle, x.busy = x.handles[x.number(4)/3], x.number(3) == 0
	for _, p := range x.producers[:2+x.number(4)/3] {
		p.Begin()
		x.open = append(x.open, &producing{Producer: p, left: 1 + x.number(3)})
	}
	for len(x.open) > 0 {
		i := x.number(len(x.open))
		if p := x.open[i]; p.left > 0 {
			p.left--
			payloads := x.payloads(1 + x.number(2)*300) // often more positions than a proof needs
			p.Insert("q", payloads, x.number(4) == 0)
			p.inserted = append(p.inserted, payloads...)
		} else {
			x.end(i, x.number(8) > 0)
		}
		for range x.number(7) {
			x.claim(min(1+x.number(8)*900, 900))
		}
		x.other()
	}
}

// other is one of the steps that are rare. Between them positions are passed: of scheduled
// jobs, until they are promoted, and of claimed ones, until they are given back.
func (x *interleaving) other() {
	x.Helper()
	of := 200
	if x.busy {
		of = 16
	}
	switch n := x.number(of); {
	case n < 3:
		x.enqueue(1+x.number(500), 0)
	case n < 6:
		x.enqueue(1+x.number(5), time.Second)
	case n < 9:
		x.Shift(2 * time.Second)
		x.sweep(backends.Maintenance{Limit: 100})
		for _, payload := range x.later {
			x.waiting[payload] = true
		}
		x.later = nil
	case n < 12 && len(x.held) > 0:
		i := x.number(len(x.held))
		j := x.held[i]
		x.held = append(x.held[:i], x.held[i+1:]...)
		x.settle(backends.Release{Leases: each(j), Uncounted: true}, 0)
		x.waiting[string(j.Payload)] = true
	}
}

// payloads are those of n new jobs.
func (x *interleaving) payloads(n int) (all []string) {
	for range n {
		x.made++
		all = append(all, fmt.Sprint(x.made))
	}
	return all
}

func (x *interleaving) end(i int, commit bool) {
	p := x.open[i]
	x.open = append(x.open[:i], x.open[i+1:]...)
	p.End(commit)
	for _, payload := range p.inserted {
		if commit {
			x.waiting[payload] = true
		}
	}
}

func (x *interleaving) enqueue(n int, delay time.Duration) {
	x.Helper()
	var e backends.Enqueue
	for _, payload := range x.payloads(n) {
		e.Jobs = append(e.Jobs, backends.NewJob{Queue: "q", Payload: []byte(payload), Delay: delay})
		if delay > 0 {
			x.later = append(x.later, payload)
		} else {
			x.waiting[payload] = true
		}
	}
	x.write(e)
}

// claim takes up to n jobs and acks all but one of them.
func (x *interleaving) claim(n int) {
	x.Helper()
	r, err := x.handle.Commit(x.Context(), x.claims(me, n, 0, policy("q")))
	if err != nil {
		x.Fatalf("claim: %v", err)
	}
	jobs := r.Claims[0].Jobs
	for _, j := range jobs {
		if !x.waiting[string(j.Payload)] {
			x.Fatalf("job %s was given, which is not waiting", j.Payload)
		}
		delete(x.waiting, string(j.Payload))
	}
	if len(jobs) > 0 {
		x.held, jobs = append(x.held, jobs[0]), jobs[1:]
		x.settle(backends.Ack{Leases: each(jobs...)}, 0)
	}
}

// drain waits until all that is committed is claimed.
func (x *interleaving) drain(round int) {
	x.Helper()
	testwait.Until(x, fmt.Sprintf("every committed job is claimable, in round %d", round), func() bool {
		x.claim(900)
		return len(x.waiting) == 0
	})
	if len(x.held) > 20 {
		x.settle(backends.Ack{Leases: each(x.held...)}, 0)
		x.held = nil
	}
}
