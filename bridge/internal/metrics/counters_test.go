package metrics

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// oneLife counts everything of one job, from its enqueue to its ack, and a commit.
func oneLife() (life func()) {
	m := New()
	d := m.Databases.Of("main")
	named := func(string) (bool, int) { return true, 0 }
	d.Named.Store(&named)
	leases := []backends.Lease{{Job: "1", Token: backends.Token{Sidecar: 1, Number: 1}}}
	var ack, enqueue backends.Write = backends.Ack{Leases: leases}, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}
	q := d.Queue("q")
	run := func(int) (*Queue, time.Duration) { return q, time.Second }
	jobs := []backends.Job{{Queue: "q", Attempt: 1}}
	done, stored := &backends.WriteResult{}, &backends.WriteResult{Stored: []backends.Stored{{ID: "1"}}}
	return func() {
		d.CountWrite(enqueue, run, false, stored)
		d.CountHandOut(jobs, time.Now(), time.Second)
		d.CountWrite(ack, run, false, done)
		d.CountCommit(time.Second, 1, 0, nil, nil)
	}
}

// TestCountingIsCheap shows that counting a job allocates nothing.
func TestCountingIsCheap(t *testing.T) {
	if n := testing.AllocsPerRun(100, oneLife()); n != 0 {
		t.Errorf("%v allocations for a job, want none", n)
	}
}

func BenchmarkCounting(b *testing.B) {
	life := oneLife()
	for b.Loop() {
		life()
	}
}
