// Package cost checks how much of a server's work the claim path takes, by count. It also has what benchmarks of all engines share.
package cost

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Cost is how many round trips and how many statements an operation sends to the server.
type Cost [2]int

// repeats is how often Check repeats each operation. What a Store does rarely, such as the registration of a queue, or
// in the background changes the cost of a few of them.
const repeats = 7

const host backends.Identity = 1

// Check compares the median cost of each operation of the claim path with want. sent returns what the Store b has
// sent up to now. The local time of b must stand still, because claims scan more of a queue now and then.
// Jobs have keys only if want has an enqueue with keys, because adopted tables have none.
func Check(t *testing.T, b backends.Backend, sent func() Cost, want map[string]Cost) {
	if p, err := b.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: host, Kind: backends.HeartbeatJoin, Name: "cost", Timeout: time.Hour}); err != nil || !p.Alive {
		t.Fatalf("join: %+v, %v", p, err)
	}
	if batches, ok := b.(backends.Batcher); ok { // its jobs cost others nothing
		if _, _, err := batches.OpenBatch(t.Context(), backends.NewBatch{On: backends.OnFinish, Callback: backends.NewJob{Queue: "q"}, Expire: time.Hour}); err != nil {
			if _, unsupported := errors.AsType[*backends.UnsupportedError](err); !unsupported {
				t.Fatal(err)
			}
		}
	}
	m := &meter{T: t, b: b, sent: sent, got: map[string][]Cost{}}
	m.commit("", enqueue(303*repeats)) // each repeat claims so many more than it enqueues without a key
	_, keys := want["enqueue with keys of 1"]
	for range repeats {
		for _, n := range []int{1, 100} {
			of := fmt.Sprint(" of ", n)
			m.commit("enqueue"+of, enqueue(n))
			m.commit("claim"+of, m.claim("q", n))
			m.commit("ack"+of, m.ack(backends.CommitContent{}))
			m.commit("", m.claim("q", n))
			m.commit("nack"+of, backends.CommitContent{Writes: []backends.Write{backends.Nack{Leases: m.leases, Error: "failed"}}})
			if keys {
				m.commit("enqueue with keys"+of, m.keyed(n))
			}
			m.commit("", m.claim("q", n))
			m.commit("ack and claim"+of, m.ack(m.claim("q", n)))
			m.commit("", m.ack(backends.CommitContent{}))
		}
		m.commit("idle claim", m.claim("idle", 1))
	}
	for _, name := range slices.Sorted(maps.Keys(m.got)) {
		all := m.got[name]
		slices.SortFunc(all, func(a, b Cost) int { return slices.Compare(a[:], b[:]) })
		got := all[len(all)/2]
		t.Logf("%s: %d round trips, %d statements", name, got[0], got[1])
		if got != want[name] {
			t.Errorf("%s: want %d round trips and %d statements; all are %v", name, want[name][0], want[name][1], all)
		}
	}
}

// Expiring compares the median cost of an enqueue of 100 jobs that expire with want. Jobs that don't expire cost what Check counts.
func Expiring(t *testing.T, b backends.Backend, sent func() Cost, want Cost) {
	m := &meter{T: t, b: b, sent: sent, got: map[string][]Cost{}}
	for range repeats {
		batch := enqueue(100)
		for i := range batch.Writes[0].(backends.Enqueue).Jobs {
			batch.Writes[0].(backends.Enqueue).Jobs[i].Expiry.StartWithin = time.Hour
		}
		m.commit("enqueue", batch)
	}
	all := m.got["enqueue"]
	slices.SortFunc(all, func(a, b Cost) int { return slices.Compare(a[:], b[:]) })
	if got := all[len(all)/2]; got != want {
		t.Errorf("an enqueue of 100 jobs that expire takes %d round trips and %d statements, want %d and %d; all are %v", got[0], got[1], want[0], want[1], all)
	}
}

// meter commits batches and keeps the costs of each operation.
type meter struct {
	*testing.T
	b      backends.Backend
	sent   func() Cost
	got    map[string][]Cost
	token  uint64
	keys   int
	leases []backends.Lease // of the jobs that the last batch claimed
}

// commit carries out a batch that belongs to an operation. Without a name its cost doesn't count.
func (m *meter) commit(name string, b backends.CommitContent) {
	m.Helper()
	before := m.sent()
	r, err := m.b.Commit(m.Context(), b)
	if err != nil {
		m.Fatalf("%s: %v", name, err)
	}
	now := m.sent()
	if name != "" {
		m.got[name] = append(m.got[name], Cost{now[0] - before[0], now[1] - before[1]})
	}
	for _, w := range r.Writes {
		if len(w.Lost) > 0 {
			m.Fatalf("%s: %d leases lost", name, len(w.Lost))
		}
	}
	m.leases = nil
	for _, c := range r.Claims {
		for _, j := range c.Jobs {
			m.leases = append(m.leases, j.Lease())
		}
		if want := len(b.Claims[0].Slots); len(c.Jobs) != want && b.Claims[0].Queues[0].Queue == "q" {
			m.Fatalf("%s: claimed %d jobs, want %d", name, len(c.Jobs), want)
		}
	}
}

func enqueue(n int) backends.CommitContent {
	var e backends.Enqueue
	for i := range n {
		e.Jobs = append(e.Jobs, backends.NewJob{Queue: "q", Payload: fmt.Append(nil, i)})
	}
	return backends.CommitContent{Writes: []backends.Write{e}}
}

// keyed enqueues n jobs with new keys.
func (m *meter) keyed(n int) backends.CommitContent {
	b := enqueue(n)
	jobs := b.Writes[0].(backends.Enqueue).Jobs
	for i := range jobs {
		m.keys++
		jobs[i].Key, jobs[i].KeyTTL = fmt.Sprint(m.keys), time.Hour
	}
	return b
}

// claim claims n jobs.
func (m *meter) claim(queue string, n int) backends.CommitContent {
	c := backends.Claim{Queues: []backends.Policy{{Queue: queue, MaxAttempts: 3, Backoff: time.Hour, BackoffMax: time.Hour}}, MaxBytes: 1 << 22, MaxPayload: 1 << 20}
	for range n {
		m.token++
		c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: host, Number: m.token}, Worker: "w"})
	}
	return backends.CommitContent{Sidecar: host, Claims: []backends.Claim{c}}
}

// ack adds the ack of the jobs claimed last to a batch.
func (m *meter) ack(b backends.CommitContent) backends.CommitContent {
	b.Writes = []backends.Write{backends.Ack{Leases: m.leases}}
	return b
}
