package backendtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testseed"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Producer is another program that inserts jobs, with one open transaction at a time.
type Producer struct {
	Begin func()
	// Insert stores a job for each payload with the documented INSERT, in the group if it has a name. If old is
	// true, the positions of the jobs are older than the statement, as if the statement was delayed or the
	// clock of a peer is behind. Engines whose positions are not times ignore old.
	Insert func(queue, group string, payloads []string, old bool)
	End    func(commit bool)
}

// lateCommitTests check that claims find jobs that other transactions commit late, at positions
// that a claim has passed.
var lateCommitTests = map[string]func(*kit){
	"EveryCommittedJobIsClaimable": func(k *kit) {
		if k.Producer == nil {
			return
		}
		rounds := 15
		switch {
		case largeRuns:
			rounds = 300
		case testing.Short():
			rounds = 8
		}
		x := interleaving{kit: k, handles: []backends.Backend{k.Backend, k.OpenAnother()}, ready: map[string]bool{}, random: testseed.Rand(k).IntN}
		for range 3 {
			x.producers = append(x.producers, k.Producer())
		}
		for round := range rounds {
			x.round()
			x.drain(round)
		}
	},
	// In a table with few rows, a server prefers to read all of them to an index. A change then waits for rows that aren't its own.
	"NoChangeWaitsForAnOpenInsert": func(k *kit) {
		if k.Producer == nil {
			return
		}
		p := k.Producer()
		for _, n := range []int{1, 2, 4} {
			for name, change := range changesOfJobs {
				p.Begin()
				p.Insert("q", "", []string{"open"}, false)
				var jobs []backends.NewJob
				for i := range n {
					jobs = append(jobs, backends.NewJob{Queue: "q", Payload: []byte(name), Key: []string{"", fmt.Sprint(name, n, i)}[i%2], KeyTTL: time.Hour})
				}
				change(k, k.enqueue(jobs...))
				p.End(false)
				k.maintain(backends.Maintenance{})
				k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateDead}, k.stats().Dead, false)
				for left := k.claim(2 * n); len(left) > 0; left = k.claim(2 * n) {
					k.writeLosing(backends.Ack{Leases: leasesOf(left...)}, 0)
				}
			}
		}
	},
}

// changesOfJobs change all the given jobs, which are ready in "q".
var changesOfJobs = map[string]func(k *kit, ids []string){
	"ack": func(k *kit, ids []string) {
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claim(len(ids))...)}, 0)
	},
	"ack of failed jobs": func(k *kit, ids []string) {
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(len(ids))...), HasDelay: true, Error: "no"}, 0)
		k.writeLosing(backends.Ack{Leases: leasesOf(k.claim(len(ids))...)}, 0)
	},
	"nack": func(k *kit, ids []string) {
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(len(ids))...), HasDelay: true}, 0)
	},
	"release": func(k *kit, ids []string) { k.writeLosing(backends.Release{Leases: leasesOf(k.claim(len(ids))...)}, 0) },
	"retry": func(k *kit, ids []string) {
		k.writeLosing(backends.Nack{Leases: leasesOf(k.claim(len(ids))...), Dead: true}, 0)
		k.operate(backends.Command{Kind: backends.Retry, Queue: "q", IDs: ids}, int64(len(ids)), true)
	},
	"cancel": func(k *kit, ids []string) {
		k.operate(backends.Command{Kind: backends.Cancel, Queue: "q", IDs: ids, RetainDead: time.Hour}, int64(len(ids)), false)
	},
	"cancel of claimed jobs": func(k *kit, ids []string) {
		k.claim(len(ids))
		k.operate(backends.Command{Kind: backends.Cancel, Queue: "q", IDs: ids, RetainDead: time.Hour}, int64(len(ids)), false)
	},
	"delete": func(k *kit, ids []string) {
		k.operate(backends.Command{Kind: backends.Delete, Queue: "q", IDs: ids}, int64(len(ids)), false)
	},
	"change": func(k *kit, ids []string) {
		priority := int16(3)
		k.operate(backends.Command{Kind: backends.Change, Queue: "q", IDs: ids, Priority: &priority}, int64(len(ids)), true)
	},
	"reclaim": func(k *kit, ids []string) {
		k.claim(len(ids))
		k.operate(backends.Command{Kind: backends.Reclaim, Queue: "q", IDs: ids}, int64(len(ids)), true)
	},
	"purge": func(k *kit, ids []string) {
		k.operate(backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}, int64(len(ids)), false)
	},
}

// interleaving runs the steps of producers, workers and maintenance in a random order.
type interleaving struct {
	*kit
	handles     []backends.Backend
	claimer     backends.Backend // the handle that claims in this round
	producers   []Producer
	random      func(n int) int
	lastPayload int
	open        []*openTx
	busy        bool            // rare steps are more frequent in this round
	ready       map[string]bool // payloads that are committed and not claimed
	scheduled   []string        // payloads of scheduled jobs
	claimed     []backends.Job
}

// openTx is an open transaction of a producer and the payloads that it inserted.
type openTx struct {
	Producer
	inserts  int // how many inserts remain
	inserted []string
}

// round runs two or three producers. They begin, insert and end, and workers claim between their
// steps. Other writes of the sidecar are rare in most rounds, because each commit shows cursors
// which transactions are open.
func (x *interleaving) round() {
	x.Helper()
	x.claimer, x.busy = x.handles[x.random(4)/3], x.random(3) == 0
	for _, p := range x.producers[:2+x.random(4)/3] {
		p.Begin()
		x.open = append(x.open, &openTx{Producer: p, inserts: 1 + x.random(3)})
	}
	for len(x.open) > 0 {
		i := x.random(len(x.open))
		if p := x.open[i]; p.inserts > 0 {
			p.inserts--
			payloads := x.newPayloads(1 + x.random(2)*300) // often more positions than a proof needs
			p.Insert("q", "", payloads, x.random(4) == 0)
			p.inserted = append(p.inserted, payloads...)
		} else {
			x.end(i, x.random(8) > 0)
		}
		for range x.random(7) {
			x.claim(min(1+x.random(8)*900, 900))
		}
		x.rareStep()
	}
}

// rareStep sometimes enqueues, promotes or releases. Claims pass the positions of scheduled and
// claimed jobs, and a promotion or a release makes such jobs ready again.
func (x *interleaving) rareStep() {
	x.Helper()
	of := 200
	if x.busy {
		of = 16
	}
	switch n := x.random(of); {
	case n < 3:
		x.enqueue(1+x.random(500), 0)
	case n < 6:
		x.enqueue(1+x.random(5), time.Second)
	case n < 9:
		x.AdvanceClock(2 * time.Second)
		x.maintain(backends.Maintenance{Limit: 100})
		for _, payload := range x.scheduled {
			x.ready[payload] = true
		}
		x.scheduled = nil
	case n < 12 && len(x.claimed) > 0:
		i := x.random(len(x.claimed))
		j := x.claimed[i]
		x.claimed = append(x.claimed[:i], x.claimed[i+1:]...)
		x.writeLosing(backends.Release{Leases: leasesOf(j), Uncounted: true}, 0)
		x.ready[string(j.Payload)] = true
	}
}

// newPayloads returns n new payloads.
func (x *interleaving) newPayloads(n int) (all []string) {
	for range n {
		x.lastPayload++
		all = append(all, fmt.Sprint(x.lastPayload))
	}
	return all
}

func (x *interleaving) end(i int, commit bool) {
	p := x.open[i]
	x.open = append(x.open[:i], x.open[i+1:]...)
	p.End(commit)
	for _, payload := range p.inserted {
		if commit {
			x.ready[payload] = true
		}
	}
}

func (x *interleaving) enqueue(n int, delay time.Duration) {
	x.Helper()
	var e backends.Enqueue
	for _, payload := range x.newPayloads(n) {
		e.Jobs = append(e.Jobs, backends.NewJob{Queue: "q", Payload: []byte(payload), Delay: delay})
		if delay > 0 {
			x.scheduled = append(x.scheduled, payload)
		} else {
			x.ready[payload] = true
		}
	}
	x.write(e)
}

// claim claims up to n jobs and acks all but one of them.
func (x *interleaving) claim(n int) {
	x.Helper()
	r, err := x.claimer.Commit(x.Context(), x.claimBatch(me, n, 0, policy("q")))
	if err != nil {
		x.Fatalf("claim: %v", err)
	}
	jobs := r.Claims[0].Jobs
	for _, j := range jobs {
		if !x.ready[string(j.Payload)] {
			x.Fatalf("claimed job %s, which is not ready", j.Payload)
		}
		delete(x.ready, string(j.Payload))
	}
	if len(jobs) > 0 {
		x.claimed, jobs = append(x.claimed, jobs[0]), jobs[1:]
		x.writeLosing(backends.Ack{Leases: leasesOf(jobs...)}, 0)
	}
}

// drain claims until no committed job is left.
func (x *interleaving) drain(round int) {
	x.Helper()
	testwait.Until(x, fmt.Sprintf("every committed job is claimable, in round %d", round), func() bool {
		x.claim(900)
		return len(x.ready) == 0
	})
	if len(x.claimed) > 20 {
		x.writeLosing(backends.Ack{Leases: leasesOf(x.claimed...)}, 0)
		x.claimed = nil
	}
}
