// Package operator has the tests of package backendtest about operators: how jobs are found and changed, and what a
// backend has used. backendtest.Run runs them.
package operator

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// sidecar has joined the database when a test begins.
const sidecar backends.Identity = 1 << 63

// Kit is one test's empty database with helpers. A helper fails the test on any error.
type Kit struct {
	*testing.T
	backends.Backend

	Advance     func(time.Duration)     // moves the database's clock
	OpenAnother func() backends.Backend // opens a second handle, as another sidecar does

	tokens uint64
}

// Tests are the tests by their names.
var Tests = map[string]func(*Kit){
	"UsageGrowsWithEachCall": usageGrows,
	"KeyHolder":              keyHolder,
	"OnlyIDs":                onlyIDs,
	"NewestFirst":            newestFirst,
	"ChangePriority":         changePriority,
	"ChangeTime":             changeTime,
	"ChangeOnlyWaitingJobs":  changeOnlyWaitingJobs,
	"ChangeAndClaimAtOnce":   changeAndClaimAtOnce,
	"HistoryAddsUp":          historyAddsUp,
	"HistoryEnds":            historyEnds,
	"HistoryAtOnce":          historyAtOnce,
}

func (k *Kit) commit(sidecar backends.Identity, w backends.Write, claims ...backends.Claim) backends.Results {
	k.Helper()
	b := backends.CommitContent{Sidecar: sidecar, Claims: claims}
	if w != nil {
		b.Writes = []backends.Write{w}
	}
	r, err := k.Commit(k.Context(), b)
	if err != nil {
		k.Fatalf("commit: %v", err)
	}
	return r
}

// enqueue stores jobs of queue q and returns their ids.
func (k *Kit) enqueue(jobs ...backends.NewJob) (ids []string) {
	k.Helper()
	for i := range jobs {
		jobs[i].Queue = "q"
	}
	for _, s := range k.commit(0, backends.Enqueue{Jobs: jobs}).Writes[0].Stored {
		ids = append(ids, s.ID)
	}
	return ids
}

// claim claims up to n jobs of queue q.
func (k *Kit) claim(n int) []backends.Job {
	k.Helper()
	c := backends.Claim{
		Queues:   []backends.Policy{{Queue: "q", MaxAttempts: 3, Backoff: time.Second, BackoffMax: time.Second, RetainDone: time.Hour, RetainDead: time.Hour}},
		MaxBytes: 1 << 22, MaxPayload: 1 << 20,
	}
	for range n {
		k.tokens++
		c.Slots = append(c.Slots, backends.Slot{Token: backends.Token{Sidecar: sidecar, Number: k.tokens}, Worker: "w"})
	}
	return k.commit(sidecar, nil, c).Claims[0].Jobs
}

// wantClaims checks which jobs a claim of n jobs gets, in order.
func (k *Kit) wantClaims(n int, want ...string) {
	k.Helper()
	got := []string{}
	for _, j := range k.claim(n) {
		got = append(got, j.ID)
	}
	if !slices.Equal(got, want) {
		k.Fatalf("claimed %q, want %q", got, want)
	}
}

func leases(jobs []backends.Job) (all []backends.Lease) {
	for i := range jobs {
		all = append(all, jobs[i].Lease())
	}
	return all
}

// maintain does the maintenance that is due.
func (k *Kit) maintain() {
	k.Helper()
	if _, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 100}); err != nil {
		k.Fatalf("maintain: %v", err)
	}
}

func (k *Kit) inspector() backends.Inspector {
	k.Helper()
	i, ok := k.Backend.(backends.Inspector)
	if !ok {
		k.Fatalf("%T isn't an Inspector", k.Backend)
	}
	return i
}

// peek returns jobs of queue q.
func (k *Kit) peek(p backends.Peek) []backends.View {
	k.Helper()
	p.Queue = "q"
	if p.Max == 0 {
		p.Max = 100
	}
	views, err := k.inspector().Peek(k.Context(), p)
	if err != nil {
		k.Fatalf("peek %+v: %v", p, err)
	}
	return views
}

// ids returns the ids of the jobs that a peek shows.
func (k *Kit) ids(p backends.Peek) (ids []string) {
	k.Helper()
	for _, v := range k.peek(p) {
		ids = append(ids, v.ID)
	}
	return ids
}

// view returns one job.
func (k *Kit) view(id string) backends.View {
	k.Helper()
	views := k.peek(backends.Peek{IDs: []string{id}})
	if len(views) != 1 {
		k.Fatalf("job %s is gone", id)
	}
	return views[0]
}

// operate carries out a command on queue q, and checks how many jobs it changed and whether it made jobs ready.
func (k *Kit) operate(c backends.Command, count int64, freed bool) {
	k.Helper()
	c.Queue = "q"
	n, f, err := k.inspector().Command(k.Context(), c)
	if err != nil || n != count || f != freed {
		k.Fatalf("%+v: changed %d, made ready: %v, %v; want %d, %v", c, n, f, err, count, freed)
	}
}

// usageGrows applies to backends that implement Metered. Other backends pass it.
func usageGrows(k *Kit) {
	m, ok := k.Backend.(backends.Metered)
	if !ok {
		return
	}
	before := m.Usage()
	k.enqueue(backends.NewJob{})
	k.commit(0, backends.Ack{Leases: leases(k.claim(1))})
	after := m.Usage()
	if after.RoundTrips.Count < before.RoundTrips.Count+3 || after.RoundTrips.Sum <= before.RoundTrips.Sum {
		k.Errorf("an enqueue, a claim and an ack: %+v, before %+v", after.RoundTrips, before.RoundTrips)
	}
	within := uint64(0)
	for _, n := range after.RoundTrips.Within {
		within += n
	}
	if within > after.RoundTrips.Count || within < after.RoundTrips.Count/2 {
		k.Errorf("of %d round trips %d are in a bucket", after.RoundTrips.Count, within)
	}
	if after.Max > 0 && (after.InUse+after.Idle < 1 || after.InUse+after.Idle > after.Max) {
		k.Errorf("the pool: %+v", after)
	}
}
