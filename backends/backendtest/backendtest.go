// Package backendtest holds a Backend to the promises of package backends. Every
// engine's tests call Run; a promise that is added there is added here.
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

// Database is an empty database made for one test, and what the test may do to it.
type Database struct {
	backends.Backend

	// Again opens a second handle, as another sidecar on the same database has.
	// Both end with the test.
	Again func() backends.Backend

	// Shift moves the database's clock, for every handle.
	Shift func(time.Duration)

	// LoseCommit has the connection of Backend's next commit break, before the
	// database carried it out or after.
	LoseCommit func(before bool)

	// Refuse has the database refuse every new job of a queue from now on, as a
	// trigger of the owner's would. reason is in the error.
	Refuse func(queue, reason string)

	// PlainInsert runs the documented statement beside the Backend. nil where the
	// engine has no SQL.
	PlainInsert func(queue, payload string)

	// Producer is another program, which ends with the test at the latest. nil where the
	// engine has no SQL, or one writer at a time.
	Producer func() Producer

	// Plain runs the PlainRow of an expression. old: past the checks of tables that are older
	// than these. nil where the engine has no SQL. Odd are expressions, by column, whose values
	// the engine takes, or nearly, and a sidecar may not be able to use.
	Plain func(column, expression string, old bool) error
	Odd   map[string][]string
}

// Run checks every promise. open must be safe to call from parallel tests.
func Run(t *testing.T, open func(t *testing.T) *Database) {
	for _, topic := range []struct {
		name  string
		tests map[string]func(*kit)
	}{
		{"Order", order}, {"Keys", keys}, {"Settle", settling}, {"Attempts", attempts}, {"Leases", leases}, {"Ahead", ahead},
		{"Hosts", hosts}, {"Races", races}, {"Late", late}, {"Faults", faults}, {"Limits", limits}, {"Values", values},
		{"Inspect", inspecting}, {"Commands", commands}, {"Retention", retention}, {"Sweep", sweeping}, {"Odd", odd}, {"Fallen", fallen}, {"Usage", usage},
	} {
		t.Run(topic.name, func(t *testing.T) {
			for name, test := range topic.tests {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					k := &kit{T: t, Database: open(t)}
					k.join(k.Backend, me)
					test(k)
				})
			}
		})
	}
}

// soak makes the races as large as issue 2 names them.
var soak = os.Getenv("QSIDECAR_SOAK") != ""

// The sidecars of the tests. me has joined when a test begins.
const (
	me    backends.Identity = 1 << 63 // the highest bit too must survive the database
	other backends.Identity = 7
)

const hostLease = 30 * time.Second

// kit is one test's database with shorthands. They fail the test on any error;
// those that goroutines call say so with Errorf and go on.
type kit struct {
	*testing.T
	*Database
	counted atomic.Uint64
}

func (k *kit) commit(b backends.Batch) backends.Results {
	k.Helper()
	r, err := k.Commit(k.Context(), b)
	if err != nil {
		k.Fatalf("commit: %v", err)
	}
	if len(r.Writes) != len(b.Writes) || len(r.Claims) != len(b.Claims) {
		k.Fatalf("%d writes and %d claims were answered with %d and %d", len(b.Writes), len(b.Claims), len(r.Writes), len(r.Claims))
	}
	CheckFallen(k, b, r)
	return r
}

func (k *kit) write(w backends.Write) backends.WriteResult {
	k.Helper()
	return k.commit(backends.Batch{Writes: []backends.Write{w}}).Writes[0]
}

// enqueue stores jobs and returns their ids.
func (k *kit) enqueue(jobs ...backends.NewJob) (ids []string) {
	k.Helper()
	for _, s := range k.write(backends.Enqueue{Jobs: jobs}).Stored {
		ids = append(ids, s.ID)
	}
	if len(ids) != len(jobs) {
		k.Fatalf("%d jobs were answered with %d", len(jobs), len(ids))
	}
	return ids
}

// put stores one job of queue "q" for each payload.
func (k *kit) put(payloads ...string) []string {
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

func (k *kit) token(host backends.Identity) backends.Token {
	return backends.Token{Host: host, Number: k.counted.Add(1)}
}

// claims asks for n jobs of each policy's queue with session leases.
func (k *kit) claims(host backends.Identity, n int, lease time.Duration, policies ...backends.Policy) backends.Batch {
	c := backends.Claim{Queues: policies, MaxBytes: 1 << 22, MaxPayload: 1 << 20}
	for range n {
		c.Slots = append(c.Slots, backends.Slot{Token: k.token(host), Lease: lease, Worker: "w"})
	}
	return backends.Batch{Host: host, Claims: []backends.Claim{c}}
}

// claim takes up to n jobs of queue "q" for me.
func (k *kit) claim(n int) []backends.Job {
	k.Helper()
	return k.commit(k.claims(me, n, 0, policy("q"))).Claims[0].Jobs
}

// one claims the only job that is ready in "q".
func (k *kit) one() backends.Job {
	k.Helper()
	jobs := k.claim(2)
	if len(jobs) != 1 {
		k.Fatalf("%d jobs are ready, want 1", len(jobs))
	}
	return jobs[0]
}

// none checks that nothing is ready in "q".
func (k *kit) none() {
	k.Helper()
	if jobs := k.claim(1); len(jobs) != 0 {
		k.Fatalf("job %s was given, want none", jobs[0].ID)
	}
}

func lease(j backends.Job) backends.Lease { return backends.Lease{Job: j.ID, Token: j.Token} }

func each(jobs ...backends.Job) (l []backends.Lease) {
	for _, j := range jobs {
		l = append(l, lease(j))
	}
	return l
}

// settle carries w out and checks how many of its leases were lost.
func (k *kit) settle(w backends.Write, lost int) backends.WriteResult {
	k.Helper()
	r := k.write(w)
	if len(r.Lost) != lost {
		k.Fatalf("%T: %d leases lost, want %d", w, len(r.Lost), lost)
	}
	return r
}

func (k *kit) join(b backends.Backend, host backends.Identity) backends.HeartbeatResult {
	k.Helper()
	return k.beat(b, host, backends.HeartbeatJoin)
}

func (k *kit) beat(b backends.Backend, host backends.Identity, kind backends.HeartbeatKind) backends.HeartbeatResult {
	k.Helper()
	p, err := b.Heartbeat(k.Context(), backends.Heartbeat{Host: host, Kind: kind, Name: "test", Timeout: hostLease})
	if err != nil {
		k.Fatalf("beat: %v", err)
	}
	return p
}

func (k *kit) sweep(s backends.Maintenance) backends.MaintenanceResult {
	k.Helper()
	if s.Limit == 0 {
		s.Limit = 100
	}
	r, err := k.Maintain(k.Context(), s)
	if err != nil {
		k.Fatalf("sweep: %v", err)
	}
	CheckReaped(k, r)
	return r
}

func (k *kit) inspector() backends.Inspector {
	k.Helper()
	i, ok := k.Backend.(backends.Inspector)
	if !ok {
		k.Fatalf("%T is no Inspector", k.Backend)
	}
	return i
}

// view looks at a job; nil: it is gone.
func (k *kit) view(id string) *backends.View {
	k.Helper()
	for _, q := range []string{"q", "p"} {
		v, err := k.inspector().Peek(k.Context(), backends.Peek{Queue: q, IDs: []string{id}, Max: 1})
		if err != nil {
			k.Fatalf("peek: %v", err)
		}
		if len(v) == 1 {
			return &v[0]
		}
	}
	return nil
}

// state checks which state a job is in; StateDeleted: it is gone.
func (k *kit) state(id string, want backends.State) {
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

// given checks which jobs a claim gave, by their payloads in order.
func (k *kit) given(jobs []backends.Job, want ...string) {
	k.Helper()
	if got := payloads(jobs); !slices.Equal(got, want) {
		k.Fatalf("given %q, want %q", got, want)
	}
}

func numbered(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}
