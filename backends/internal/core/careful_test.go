package core_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/backendtest"
)

// TestMoreRefusedRowsThanAreRemembered: the other rows of the queue are still claimed, and other queues can have refused rows of
// their own.
func TestMoreRefusedRowsThanAreRemembered(t *testing.T) {
	t.Parallel()
	db := &database{t: newTables(), refuse: map[string]string{}, refuseChanges: []backendtest.Refusal{{Queue: "q", Priority: 1, Reason: "never"}, {Queue: "p", Priority: 1, Reason: "never"}}}
	e := newEngine(db)
	now := time.Now()
	e.ObstacleSet().Now = func() time.Time { return now } // no row is due again
	if _, err := e.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Kind: backends.HeartbeatJoin, Timeout: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	number := uint64(0)
	claim := func(queue string, n int) (jobs []backends.Job, more bool, err error) {
		c := backends.Claim{Queues: []backends.Policy{{Queue: queue, MaxAttempts: 3}}}
		for range n {
			number++
			c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: 1, Number: number}})
		}
		r, err := e.Commit(t.Context(), backends.CommitContent{Sidecar: 1, Claims: []backends.Claim{c}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Claims[0].Jobs, r.Claims[0].More, r.Claims[0].Err
	}
	store := func(queue string, priority int16, n int) {
		jobs := make([]backends.NewJob, n)
		for i := range jobs {
			jobs[i] = backends.NewJob{Queue: queue, Priority: priority, Payload: []byte(strconv.Itoa(i))}
		}
		if _, err := e.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}}); err != nil {
			t.Fatal(err)
		}
	}
	store("q", 1, backends.MaxObstacles+10)
	store("q", 0, 3)
	got := 0
	for range backends.MaxObstacles {
		jobs, more, err := claim("q", 2)
		if err != nil {
			t.Fatalf("after %d jobs: %v", got, err)
		}
		if got += len(jobs); len(jobs) == 0 && !more {
			break
		}
	}
	if got != 3 {
		t.Errorf("%d jobs were claimed, want 3", got)
	}
	store("p", 1, 1)
	store("p", 0, 1)
	if jobs, _, err := claim("p", 2); len(jobs) != 1 || err != nil {
		t.Errorf("another queue: %d jobs, %v", len(jobs), err)
	}

	// If a claim finds only refused rows, the queue waits: the next claim would find the same ones.
	store("q", 1, 100)
	store("q", 0, 1)
	jobs, _, err := claim("q", 2)
	for err == nil && len(jobs) == 0 {
		jobs, _, err = claim("q", 2)
	}
	var u *backends.UnavailableError
	if !errors.As(err, &u) || u.Queue != "q" {
		t.Errorf("too many refused rows: %d jobs, %v", len(jobs), err)
	}
}
