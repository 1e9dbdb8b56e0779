// Package plan has the running form of one configuration: which queue is in which database, under which policy and
// limits, and what the clients of a socket are allowed to do.
//
// A Plan never changes. A reload makes another one, and a request keeps the one that it began with. The package opens
// and runs nothing. Start reading at Plan.
package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/permission"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// For the jobs of a queue that isn't in the config: another sidecar claimed them.
const (
	DefaultMaxAttempts = 20
	DefaultJitter      = 0.1
)

// Plan is one configuration as it runs.
type Plan struct {
	Settings
	Limits  protocol.Limits // of messages
	Limited bool            // at least one queue has a MaxReady

	byID map[string]*Database // by the database's random id; only databases that were reached
}

// Settings are what a Plan is made of.
type Settings struct {
	Server            string // the program's name and version
	MaxFrame          int    // size of the largest request
	JobsPerConnection int    // number of jobs that one connection can hold
	QueueNames        int    // number of queues of the "*" entry that one user's clients can use

	Databases []*Database                  // also those that a reload removed and that still have leases
	Queues    map[string]*Queue            // by name. "*" stands for every name without its own entry
	Rights    map[string][]permission.Rule // by path of a socket. A nil list grants everything
}

// Database is a database of a Plan.
type Database struct {
	*pipeline.Pipeline
	Name   string // in the config. Of a database that was removed: its last one
	Served bool   // false: a reload removed it
}

// Queue is the configuration of a queue.
type Queue struct {
	Database    *Database
	Policy      backends.Policy // without the name of the queue
	Jitter      float64         // by which part of itself a back-off can become longer or shorter
	KeyTTL      time.Duration   // minimum time that a key is remembered
	RetainBatch time.Duration   // how long a batch with its callback in the queue is kept if it doesn't end
	Expiry      backends.Expiry // of jobs that have none of their own
	MaxReady    int64           // number of ready jobs from which an enqueue is refused; 0: no limit
}

// New returns the Plan of the settings.
func New(s Settings) *Plan {
	p := &Plan{Settings: s, Limits: protocol.NewLimits(s.MaxFrame), byID: make(map[string]*Database)}
	for _, db := range s.Databases {
		if id := db.Info.Database; id != "" {
			p.byID[id] = db
		}
	}
	for _, q := range s.Queues {
		p.Limited = p.Limited || q.MaxReady > 0
	}
	return p
}

// Owner returns the database that issued a lease with that id, or nil if none of these did. It returns an error if a
// database was not reached yet, because that one could have issued the lease.
func (p *Plan) Owner(id string) (*Database, error) {
	if db := p.byID[id]; db != nil {
		return db, nil
	}
	for _, db := range p.Databases {
		if db.Info.Database == "" {
			return nil, backends.Unavailable(fmt.Errorf("database %s was not reached since the sidecar started, so its leases can't be checked (`qsidecar status` shows why)", db.Name))
		}
	}
	return nil, nil
}

// Queue returns the configuration of a queue, or nil if there is none.
func (p *Plan) Queue(name string) *Queue {
	if q := p.Queues[name]; q != nil && name != "*" {
		return q
	}
	return p.Queues["*"]
}

// IsIn reports whether the queue is in the database.
func (p *Plan) IsIn(name string, db *Database) bool {
	q := p.Queue(name)
	return q != nil && q.Database == db
}

// PolicyIn returns the policy that a claim writes into the queue's rows. It returns false if the queue is not in that
// database.
func (p *Plan) PolicyIn(db *pipeline.Pipeline, name string) (backends.Policy, bool) {
	q := p.Queue(name)
	if q == nil || q.Database.Pipeline != db {
		return backends.Policy{}, false
	}
	policy := q.Policy
	policy.Queue = name
	return policy, true
}

// Expiry returns the limit of the queue's jobs that have none of their own.
func (p *Plan) Expiry(name string) (e backends.Expiry) {
	if q := p.Queue(name); q != nil {
		e = q.Expiry
	}
	return e
}

// Jitter returns by which part of itself a back-off of the queue can become longer or shorter.
func (p *Plan) Jitter(name string) float64 {
	if q := p.Queue(name); q != nil {
		return q.Jitter
	}
	return DefaultJitter
}

// MaxAttempts returns how many attempts the queue's jobs have.
func (p *Plan) MaxAttempts(name string) int {
	if q := p.Queue(name); q != nil {
		return q.Policy.MaxAttempts
	}
	return DefaultMaxAttempts
}

// DatabaseOfQueue returns the database of the queue in the field "queue".
func (p *Plan) DatabaseOfQueue(name string) (*Database, *protocol.Error) {
	q := p.Queue(name)
	if q == nil {
		return nil, p.UnknownQueue(name)
	}
	return q.Database, nil
}

// databaseOf returns the one database of all queues in the field "queues".
func (p *Plan) databaseOf(queues []string) (*Database, *protocol.Error) {
	var db *Database
	for i, name := range queues {
		q := p.Queue(name)
		if q == nil {
			e := p.UnknownQueue(name)
			e.Field, e.Index = "queues", protocol.Some(int64(i))
			return nil, e
		}
		if db == nil {
			db = q.Database
		} else if db != q.Database {
			return nil, protocol.BadField("queues", "queue %s is in database %s, queue %s in %s: one request takes queues of one database",
				queues[0], db.Name, name, q.Database.Name)
		}
	}
	return db, nil
}

// DatabaseOfClaim returns the database of a claim's queues. They come from the field "queues", or from "queue" if
// single is set.
func (p *Plan) DatabaseOfClaim(queues []string, single bool) (*Database, *protocol.Error) {
	if single {
		return p.DatabaseOfQueue(queues[0])
	}
	return p.databaseOf(queues)
}

// Inspectable is DatabaseOfQueue for a queue whose database supports inspection.
func (p *Plan) Inspectable(queue string) (*Database, *protocol.Error) {
	db, wire := p.DatabaseOfQueue(queue)
	if wire == nil && !db.Inspectable() {
		wire = protocol.Errorf(protocol.CodeUnsupported, "database %s doesn't support inspection", db.Name)
	}
	return db, wire
}

// Reroute ends the waits of the database's claims whose queues are elsewhere now.
func (p *Plan) Reroute(db *pipeline.Pipeline) {
	db.Reroute(func(queues []string) bool {
		to, wire := p.databaseOf(queues)
		return wire == nil && to.Pipeline == db
	})
}

// HasSocket reports whether clients of the socket at the path are served. The path of a stream is empty.
func (p *Plan) HasSocket(path string) bool {
	_, ok := p.Rights[path]
	return ok || path == ""
}

// Grant returns the rights of a peer that connected to the socket at the path. If the plan does not have the socket, the
// peer has no rights.
func (p *Plan) Grant(path string, who *unixsocket.Peer) permission.Grant {
	if !p.HasSocket(path) {
		return permission.Grant{}
	}
	return permission.NewGrant(p.Rights[path], who)
}

// UnknownQueue returns the error for a queue that the plan doesn't have. If some peers must not see every queue, it suggests no other name.
func (p *Plan) UnknownQueue(name string) *protocol.Error {
	hint := ""
	if !slices.ContainsFunc(slices.Collect(maps.Values(p.Rights)), func(rules []permission.Rule) bool { return rules != nil }) {
		if near := textfmt.Nearest(name, slices.Sorted(maps.Keys(p.Queues))); near != "" {
			hint = ": did you mean " + near + "?"
		}
	}
	e := protocol.Errorf(protocol.CodeUnknownQueue, "no queue %q is configured, and there is no \"*\" queue for other names%s", name, hint)
	e.Field = "queue"
	return e
}
