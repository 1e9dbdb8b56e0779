package plan

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/permission"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// known is a database with the random id that the test sets; empty: it was not reached.
type known struct {
	*memory.Backend
	id string
}

func (k *known) Info() backends.Info {
	info := k.Backend.Info()
	info.Database = k.id
	return info
}

func newDatabase(name, id string) *Database {
	return &Database{Name: name, Served: true, Pipeline: pipeline.New(pipeline.Config{Name: name, Backend: &known{memory.New(), id}})}
}

// TestDatabaseOfAQueue shows that "*" stands for names without an entry, and that the queues of a claim are of one database.
func TestDatabaseOfAQueue(t *testing.T) {
	first, second := newDatabase("first", "A"), newDatabase("second", "B")
	p := New(Settings{Databases: []*Database{first, second}, Queues: map[string]*Queue{
		"mail": {Database: first, Policy: backends.Policy{MaxAttempts: 3}},
		"*":    {Database: second, MaxReady: 7},
	}})
	for queue, want := range map[string]*Database{"mail": first, "other": second, "*": second} {
		if db, wire := p.DatabaseOfQueue(queue); db != want || wire != nil {
			t.Errorf("%s is in %+v (%v), want %s", queue, db, wire, want.Name)
		}
	}
	if db, wire := p.DatabaseOfClaim([]string{"a", "b"}, false); db != second || wire != nil {
		t.Errorf("a claim of two queues of one database goes to %+v (%v)", db, wire)
	}
	if _, wire := p.DatabaseOfClaim([]string{"mail", "b"}, false); wire == nil || wire.Field != "queues" {
		t.Errorf("a claim of queues of two databases: %v", wire)
	}
	if policy, ok := p.PolicyIn(first.Pipeline, "mail"); !ok || policy.Queue != "mail" || policy.MaxAttempts != 3 {
		t.Errorf("the policy of mail is %+v (%v)", policy, ok)
	}
	if _, ok := p.PolicyIn(second.Pipeline, "mail"); ok {
		t.Error("a queue of another database has a policy")
	}
	if !p.Limited {
		t.Error("no queue limits its ready jobs")
	}
}

// TestUnknownQueue shows that a name without an entry is unknown if there is no "*", and that its jobs have the default
// policy: another sidecar can have claimed them.
func TestUnknownQueue(t *testing.T) {
	db := newDatabase("main", "A")
	p := New(Settings{Databases: []*Database{db}, Queues: map[string]*Queue{"mail": {Database: db}}})
	if _, wire := p.DatabaseOfClaim([]string{"mail", "other"}, false); wire == nil || wire.Code != protocol.CodeUnknownQueue || wire.Index.Or(-1) != 1 {
		t.Errorf("a claim of an unknown queue: %+v", wire)
	}
	if _, wire := p.DatabaseOfQueue("*"); wire == nil {
		t.Error("* is a queue")
	}
	for _, c := range []struct {
		rights map[string][]permission.Rule
		want   bool
	}{{nil, true}, {map[string][]permission.Rule{"a": nil}, true}, {map[string][]permission.Rule{"a": nil, "b": {}}, false}} {
		p := New(Settings{Databases: []*Database{db}, Queues: map[string]*Queue{"mail": {Database: db}}, Rights: c.rights})
		if _, wire := p.DatabaseOfQueue("mial"); strings.Contains(wire.Message, "did you mean mail?") != c.want {
			t.Errorf("with the rights %v: %s", c.rights, wire.Message)
		}
	}
	if p.MaxAttempts("other") != DefaultMaxAttempts || p.Jitter("other") != DefaultJitter {
		t.Errorf("an unknown queue has %d attempts and a jitter of %v", p.MaxAttempts("other"), p.Jitter("other"))
	}
}

// TestOwnerOfALease shows that a lease is lost only if no database can have issued it: one that was not reached yet can.
func TestOwnerOfALease(t *testing.T) {
	reached, removed := newDatabase("reached", "A"), newDatabase("removed", "B")
	removed.Served = false
	p := New(Settings{Databases: []*Database{reached, removed}})
	for id, want := range map[string]*Database{"A": reached, "B": removed, "C": nil} {
		if db, err := p.Owner(id); db != want || err != nil {
			t.Errorf("the lease of %s belongs to %+v (%v)", id, db, err)
		}
	}
	p = New(Settings{Databases: []*Database{reached, newDatabase("new", "")}})
	if db, err := p.Owner("A"); db != reached || err != nil {
		t.Errorf("a lease of a known database: %+v, %v", db, err)
	}
	if _, err := p.Owner("C"); !backends.Retryable(err) {
		t.Errorf("a lease that a database can have issued that was not reached yet: %v", err)
	}
}

// TestGrantWithoutASocket shows that only a socket without rules grants everything, and not one that is gone.
func TestGrantWithoutASocket(t *testing.T) {
	p := New(Settings{Rights: map[string][]permission.Rule{"open": nil, "closed": {}}})
	for path, all := range map[string]bool{"open": true, "": true, "closed": false, "gone": false} {
		if g := p.Grant(path, &unixsocket.Peer{}); g.All != all || g.Op(protocol.OpPing) != all {
			t.Errorf("the socket %q grants %+v", path, g)
		}
	}
}
