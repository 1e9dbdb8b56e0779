package backendtest

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// largeRuns selects the full size of the concurrency tests (QSIDECAR_SOAK).
var largeRuns = os.Getenv("QSIDECAR_SOAK") != ""

// The sidecars of the tests. me has joined when a test begins.
const (
	me    backends.Identity = 1 << 63 // the database must keep the highest bit too
	other backends.Identity = 7
)

const sidecarTimeout = 30 * time.Second

// kit is one test's database with helpers. A helper fails the test on any error. Goroutines call
// Commit and Maintain themselves and report errors with Error.
type kit struct {
	*testing.T
	*Database
	lastToken atomic.Uint64
}

func (k *kit) commit(b backends.CommitContent) backends.Results {
	k.Helper()
	r, err := k.Commit(k.Context(), b)
	if err != nil {
		k.Fatalf("commit: %v", err)
	}
	if len(r.Writes) != len(b.Writes) || len(r.Claims) != len(b.Claims) {
		k.Fatalf("%d writes and %d claims got %d and %d results", len(b.Writes), len(b.Claims), len(r.Writes), len(r.Claims))
	}
	CheckFailedCounts(k, b, r)
	k.admit(k.Backend, r)
	return r
}

// admit does what a caller does after a commit. It returns the queues with new ready jobs.
func (k *kit) admit(b backends.Backend, r backends.Results) []string {
	if len(r.Groups) == 0 {
		return nil
	}
	return b.(backends.Admitter).Admit(k.Context(), r.Groups)
}

func (k *kit) write(w backends.Write) backends.WriteResult {
	k.Helper()
	return k.commit(backends.CommitContent{Writes: []backends.Write{w}}).Writes[0]
}

// enqueue stores jobs and returns their ids.
func (k *kit) enqueue(jobs ...backends.NewJob) (ids []string) {
	k.Helper()
	for _, s := range k.write(backends.Enqueue{Jobs: jobs}).Stored {
		ids = append(ids, s.ID)
	}
	if len(ids) != len(jobs) {
		k.Fatalf("%d jobs got %d results", len(jobs), len(ids))
	}
	return ids
}

// enqueuePayloads stores one job of queue "q" for each payload.
func (k *kit) enqueuePayloads(payloads ...string) []string {
	k.Helper()
	jobs := make([]backends.NewJob, len(payloads))
	for i, p := range payloads {
		jobs[i] = backends.NewJob{Queue: "q", Payload: []byte(p)}
	}
	return k.enqueue(jobs...)
}

func policy(queue string) backends.Policy {
	return backends.Policy{Queue: queue, MaxAttempts: 3, Backoff: time.Second, BackoffMax: 5 * time.Second, RetainDead: 24 * time.Hour}
}

func (k *kit) token(sidecar backends.Identity) backends.Token {
	return backends.Token{Sidecar: sidecar, Number: k.lastToken.Add(1)}
}

// claimBatch is a batch in which host claims up to n jobs of the policies' queues. A lease of 0 is
// a session lease.
func (k *kit) claimBatch(sidecar backends.Identity, n int, lease time.Duration, policies ...backends.Policy) backends.CommitContent {
	c := backends.Claim{Queues: policies, MaxBytes: 1 << 22, MaxPayload: 1 << 20}
	for range n {
		c.Slots = append(c.Slots, backends.Slot{Token: k.token(sidecar), Lease: lease, Worker: "w"})
	}
	return backends.CommitContent{Sidecar: sidecar, Claims: []backends.Claim{c}}
}

// claim claims up to n jobs of queue "q" for me.
func (k *kit) claim(n int) []backends.Job {
	k.Helper()
	return k.commit(k.claimBatch(me, n, 0, policy("q"))).Claims[0].Jobs
}

// claimOne claims the only job that is ready in "q".
func (k *kit) claimOne() backends.Job {
	k.Helper()
	return k.onlyJob(k.claimBatch(me, 2, 0, policy("q")))
}

// onlyJob returns the one job that a batch claims.
func (k *kit) onlyJob(b backends.CommitContent) backends.Job {
	k.Helper()
	jobs := k.commit(b).Claims[0].Jobs
	if len(jobs) != 1 {
		k.Fatalf("claimed %d jobs, want 1", len(jobs))
	}
	return jobs[0]
}

// wantNoneReady checks that no job is ready in "q".
func (k *kit) wantNoneReady() {
	k.Helper()
	if jobs := k.claim(1); len(jobs) != 0 {
		k.Fatalf("claimed job %s, want none", jobs[0].ID)
	}
}

func leasesOf(jobs ...backends.Job) (l []backends.Lease) {
	for _, j := range jobs {
		l = append(l, j.Lease())
	}
	return l
}

// writeLosing carries out w and checks how many of its leases were lost.
func (k *kit) writeLosing(w backends.Write, lost int) backends.WriteResult {
	k.Helper()
	r := k.write(w)
	if len(r.Lost) != lost {
		k.Fatalf("%T: %d leases lost, want %d", w, len(r.Lost), lost)
	}
	return r
}

func (k *kit) join(b backends.Backend, sidecar backends.Identity) backends.HeartbeatResult {
	k.Helper()
	return k.heartbeat(b, sidecar, backends.HeartbeatJoin)
}

func (k *kit) heartbeat(b backends.Backend, sidecar backends.Identity, kind backends.HeartbeatKind) backends.HeartbeatResult {
	k.Helper()
	p, err := b.Heartbeat(k.Context(), backends.Heartbeat{Sidecar: sidecar, Kind: kind, Name: "test", Timeout: sidecarTimeout})
	if err != nil {
		k.Fatalf("heartbeat: %v", err)
	}
	return p
}

func (k *kit) maintain(s backends.Maintenance) backends.MaintenanceResult {
	k.Helper()
	if s.Limit == 0 {
		s.Limit = 100
	}
	r, err := k.Maintain(k.Context(), s)
	if err != nil {
		k.Fatalf("maintain: %v", err)
	}
	CheckReapedCounts(k, r)
	return r
}

func (k *kit) inspector() backends.Inspector {
	k.Helper()
	i, ok := k.Backend.(backends.Inspector)
	if !ok {
		k.Fatalf("%T isn't an Inspector", k.Backend)
	}
	return i
}

func (k *kit) views(p backends.Peek) []backends.View {
	k.Helper()
	v, err := k.inspector().Peek(k.Context(), p)
	if err != nil {
		k.Fatalf("peek %+v: %v", p, err)
	}
	return v
}

// view returns a job as Peek shows it, or nil if it does not exist.
func (k *kit) view(id string) *backends.View {
	k.Helper()
	for _, q := range []string{"q", "p"} {
		if v := k.views(backends.Peek{Queue: q, IDs: []string{id}, Max: 1}); len(v) == 1 {
			return &v[0]
		}
	}
	return nil
}

// wantState checks a job's state. StateDeleted means that the job does not exist.
func (k *kit) wantState(id string, want backends.State) {
	k.Helper()
	got := backends.StateDeleted
	if v := k.view(id); v != nil {
		got = v.State
	}
	if got != want {
		k.Fatalf("job %s is %s, want %s", id, got, want)
	}
}

func (k *kit) stats() backends.QueueStats {
	k.Helper()
	s, err := k.inspector().Stats(k.Context(), "q")
	if err != nil || len(s) != 1 {
		k.Fatalf("stats: %v, %v", s, err)
	}
	return s[0]
}

func payloads(jobs []backends.Job) (all []string) {
	for _, j := range jobs {
		all = append(all, string(j.Payload))
	}
	return all
}

// wantJobs checks the payloads of claimed jobs, in order.
func (k *kit) wantJobs(jobs []backends.Job, want ...string) {
	k.Helper()
	if got := payloads(jobs); !slices.Equal(got, want) {
		k.Fatalf("claimed %q, want %q", got, want)
	}
}

func numbered(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}
