package core_test

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestLateJobBehindTheHead: claims that fill their slots from the head on don't delay the full scan, which finds a job that was
// committed late at a position behind the head.
func TestLateJobBehindTheHead(t *testing.T) {
	t.Parallel()
	const host = 7
	db := &database{t: newTables(), now: time.Now(), refuse: map[string]string{}}
	e := newEngine(db)
	at := time.Now()
	e.LocalTime = func() time.Time { return at }
	if _, err := e.Heartbeat(t.Context(), backends.Heartbeat{Host: host, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	commit := func(b backends.Batch) backends.Results {
		t.Helper()
		res, err := e.Commit(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	commit(backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "q"}}, 100)}}})
	number := uint64(0)
	claim := func(n int) (jobs []backends.Job) {
		t.Helper()
		c := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 3}}}
		for range n {
			number++
			c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Host: host, Number: number}})
		}
		return commit(backends.Batch{Host: host, Claims: []backends.Claim{c}}).Claims[0].Jobs
	}
	late := claim(50)[20].ID
	for _, r := range db.t.jobs {
		if r.position == 21 { // its first claim never happened: another program inserted it, and commits now
			r.state = backends.StateReady
			r.unclaim()
		}
	}
	for n := range 40 {
		at = at.Add(100 * time.Millisecond)
		jobs := claim(1)
		switch {
		case len(jobs) != 1:
			t.Fatalf("claimed %v", jobs)
		case jobs[0].ID != late:
		case n == 0:
			t.Fatal("the first claim scanned everything")
		default:
			return
		}
	}
	t.Error("40 claims in 4 s passed the job")
}
