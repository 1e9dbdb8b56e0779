package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// HeartbeatEvery is how often a sidecar sends a heartbeat, with the default sidecar_timeout of 30 s. The other intervals are
// those of its maintenance.
const (
	HeartbeatEvery = 5 * time.Second
	lookEvery      = 750 * time.Millisecond
	pruneEvery     = 10 * time.Second
)

// Bench does what sidecars do that share a database and a queue: heartbeats, with the query for the claimed jobs that
// follows each, and maintenance for a waiting worker, at the intervals of bridge/internal/heartbeat and
// bridge/internal/maintenance. Each job is stored by one sidecar, and claimed and acked by another, in three commits. The time
// is that of a virtual clock, so the machine's speed doesn't matter.
type Bench struct {
	b        *testing.B
	jobs     int // in a second
	clock    time.Time
	number   int // of jobs so far
	sidecars []*sidecar
}

type sidecar struct {
	backends.Backend
	self    backends.Heartbeat
	watched bool
	pruned  time.Time
}

// NewBench returns n sidecars that have joined. open opens a Store with the virtual clock.
func NewBench(b *testing.B, n, jobs int, open func(clock func() time.Time) backends.Backend) *Bench {
	f := &Bench{b: b, jobs: jobs, clock: time.Now()}
	for i := range n {
		s := &sidecar{Backend: open(func() time.Time { return f.clock })}
		// The heartbeats don't expire, however slow the machine is. Identities are spread like random ones.
		s.self = backends.Heartbeat{Sidecar: backends.Identity(uint64(i+1) * 0x9e3779b97f4a7c15), Name: fmt.Sprintf("host%d:1", i), Version: "1.0.0", Timeout: 10 * time.Hour}
		f.sidecars = append(f.sidecars, s)
		f.heartbeat(s)
		s.self.Kind = backends.HeartbeatRenew
	}
	return f
}

// Round runs until each sidecar has sent one heartbeat.
func (b *Bench) Round() {
	b.b.Helper()
	n := len(b.sidecars)
	due := func(ms, each int, every time.Duration) (from, to int) { // numbers of what happens in a millisecond
		return ms * each / int(every.Milliseconds()), (ms + 1) * each / int(every.Milliseconds())
	}
	for ms := range int(HeartbeatEvery.Milliseconds()) {
		b.clock = b.clock.Add(time.Millisecond)
		for i, to := due(ms, n, HeartbeatEvery); i < to; i++ {
			b.heartbeat(b.sidecars[i%n])
		}
		for i, to := due(ms, n, lookEvery); i < to; i++ {
			b.look(b.sidecars[i%n])
		}
		for i, to := due(ms, b.jobs, time.Second); i < to; i++ {
			b.job()
		}
	}
}

func (b *Bench) heartbeat(s *sidecar) {
	b.b.Helper()
	r, err := s.Heartbeat(b.b.Context(), s.self)
	if err != nil || !r.Alive {
		b.b.Fatal(r.Alive, err)
	}
	s.watched = r.Watched
	if claimed, err := s.ClaimedBy(b.b.Context(), s.self.Sidecar, "", 1000); err != nil || len(claimed) > 0 {
		b.b.Fatal(claimed, err)
	}
}

// look is maintenance. Only watchers prune.
func (b *Bench) look(s *sidecar) {
	b.b.Helper()
	m := backends.Maintenance{Waiting: []string{"q"}, Sidecar: s.self.Sidecar, Watched: s.watched, Limit: 500, PruneBatch: 100}
	if m.Prune = !s.watched && b.clock.Sub(s.pruned) >= pruneEvery; m.Prune {
		s.pruned = b.clock
	}
	if _, err := s.Maintain(b.b.Context(), m); err != nil {
		b.b.Fatal(err)
	}
}

// job stores a job by the next sidecar. Another one claims and acks it.
func (b *Bench) job() {
	b.b.Helper()
	b.number++
	from, to := b.sidecars[b.number%len(b.sidecars)], b.sidecars[(b.number+len(b.sidecars)/2)%len(b.sidecars)]
	commit := func(s *sidecar, c backends.CommitContent) backends.Results {
		b.b.Helper()
		r, err := s.Commit(b.b.Context(), c)
		if err != nil {
			b.b.Fatal(err)
		}
		return r
	}
	commit(from, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, 100)}}}}})
	jobs := commit(to, backends.CommitContent{Sidecar: to.self.Sidecar, Claims: []backends.Claim{{
		Queues: []backends.Policy{{Queue: "q", MaxAttempts: 20, RetainDead: time.Hour}}, MaxBytes: 1 << 22, MaxPayload: 1 << 22,
		Slots: []backends.Slot{{Token: backends.Token{Sidecar: to.self.Sidecar, Number: uint64(b.number)}, Worker: "w"}},
	}}}).Claims[0].Jobs
	if len(jobs) != 1 {
		b.b.Fatalf("claimed %d jobs, want 1", len(jobs))
	}
	if lost := commit(to, backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: []backends.Lease{jobs[0].Lease()}}}}).Writes[0].Lost; len(lost) > 0 {
		b.b.Fatal("the lease is lost")
	}
}
