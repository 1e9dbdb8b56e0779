package core_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// claimer claims from the queue "q" of the example engine.
type claimer struct {
	*testing.T
	*engine
	number uint64 // of the last token
}

const claimerHost = 7

func newClaimer(t *testing.T, jobs int) *claimer {
	t.Helper()
	c := &claimer{T: t, engine: newEngine(&database{t: newTables(), now: time.Now(), refuse: map[string]string{}})}
	if _, err := c.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: claimerHost, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	c.enqueue(jobs)
	return c
}

func (c *claimer) enqueue(n int) {
	c.Helper()
	c.commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: slices.Repeat([]backends.NewJob{{Queue: "q"}}, n)}}})
}

func (c *claimer) commit(b backends.CommitContent) backends.Results {
	c.Helper()
	res, err := c.engine.Commit(c.Context(), b)
	if err != nil {
		c.Fatal(err)
	}
	return res
}

func (c *claimer) claim(n int) []backends.Job {
	c.Helper()
	claim := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 3}}}
	for range n {
		c.number++
		claim.Slots = append(claim.Slots, backends.Slot{Token: backends.Token{Sidecar: claimerHost, Number: c.number}})
	}
	return c.commit(backends.CommitContent{Sidecar: claimerHost, Claims: []backends.Claim{claim}}).Claims[0].Jobs
}

// TestLateJobBehindTheHead: claims that fill their slots from the head on don't delay the full scan, which finds a job that was
// committed late at a position behind the head.
func TestLateJobBehindTheHead(t *testing.T) {
	t.Parallel()
	c, at := newClaimer(t, 100), time.Now()
	c.LocalTime = func() time.Time { return at }
	late := c.claim(50)[20].ID
	for _, r := range c.db.t.jobs {
		if r.position == 21 { // its first claim never happened: another program inserted it, and commits now
			r.state = backends.StateReady
			r.unclaim()
		}
	}
	for n := range 40 {
		at = at.Add(100 * time.Millisecond)
		jobs := c.claim(1)
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

// TestClaimThatLeftOutARange: if full scans are slow, claims leave out the range behind the head. Neither a short claim that did so
// nor a full one delays the full scan, which finds a job there.
func TestClaimThatLeftOutARange(t *testing.T) {
	t.Parallel()
	for _, backlog := range []int{0, 500} {
		c, at := newClaimer(t, 1), time.Now()
		late := core.ID(c.db.t.last)
		c.db.t.last = 1 << 20
		c.enqueue(backlog)
		c.LocalTime = func() time.Time { at = at.Add(50 * time.Millisecond); return at } // each claim is slow
		c.Cursors.Learn("q", cursor.Learned{Asked: at, Taken: []cursor.Spot{{Position: 1 << 20}}, All: true, Took: time.Second})
		var jobs []backends.Job
		for n := range 500 {
			if jobs = c.claim(1); len(jobs) > 0 && jobs[0].ID == late {
				if n == 0 {
					t.Fatal("the first claim scanned everything")
				}
				break
			}
		}
		if len(jobs) == 0 || jobs[0].ID != late {
			t.Errorf("with %d others, 500 claims passed the job", backlog)
		}
	}
}

// TestLostHeartbeatResetsTheCursors shows that the next claim finds a job below all positions that claims have passed, if a heartbeat did
// not find its sidecar: a backup was restored in which it does not exist.
func TestLostHeartbeatResetsTheCursors(t *testing.T) {
	t.Parallel()
	for _, alive := range []bool{true, false} {
		c, at := newClaimer(t, 1), time.Now()
		restored := core.ID(c.db.t.last)
		c.db.t.last = 1 << 20
		c.LocalTime = func() time.Time { return at }
		c.Cursors.Learn("q", cursor.Learned{Asked: at, Taken: []cursor.Spot{{Position: 1 << 20}}, All: true, Took: time.Second})
		c.HeartbeatAnswered(backends.Heartbeat{Kind: backends.HeartbeatRenew}, backends.HeartbeatResult{Alive: alive})
		jobs := c.claim(1)
		if found := len(jobs) == 1 && jobs[0].ID == restored; found == alive {
			t.Errorf("alive %v: the claim found the job: %v", alive, found)
		}
	}
}

// TestPartOfAClaimWithAnUnknownOutcome shows that a claim that has jobs reports that the outcome of a later part is unknown.
func TestPartOfAClaimWithAnUnknownOutcome(t *testing.T) {
	claimed := backends.ClaimResult{Jobs: []backends.Job{{ID: "1"}}}
	for _, c := range []struct {
		parts   []backends.ClaimResult
		err     error
		unknown bool
		fails   bool
	}{
		{nil, backends.ErrUnknownOutcome, false, true},
		{[]backends.ClaimResult{claimed}, errors.New("refused"), false, false},
		{[]backends.ClaimResult{claimed}, fmt.Errorf("part: %w", backends.ErrUnknownOutcome), true, false},
		{[]backends.ClaimResult{{Unknown: true}, claimed}, nil, true, false},
	} {
		p := core.ClaimParts{Claim: backends.Claim{Slots: make([]backends.Slot, 3)}}
		for _, part := range c.parts {
			p.Add(part)
		}
		if err := p.Unless(c.err); (err != nil) != c.fails || p.Res.Unknown != c.unknown {
			t.Errorf("after %d parts and the error %v: %v, unknown: %v", len(c.parts), c.err, err, p.Res.Unknown)
		}
	}
}
