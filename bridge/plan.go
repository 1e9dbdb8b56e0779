package bridge

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// plan is one configuration as it runs. It never changes: a reload puts another one
// in its place, and a request keeps the one that it began with.
type plan struct {
	opts      Options
	limits    protocol.Limits
	databases []*database
	byName    map[string]*database // by name in the options
	byID      map[string]*database // by the database's random id; those that were reached
	limited   bool                 // a queue has a MaxReady
}

// newPlan is the plan of options that were checked, without its databases.
func newPlan(o Options) *plan {
	p := &plan{opts: o, limits: protocol.NewLimits(o.MaxFrame), byName: make(map[string]*database), byID: make(map[string]*database)}
	for _, q := range o.Queues {
		p.limited = p.limited || q.MaxReady > 0
	}
	return p
}

// add takes a database into the plan, under its name in the options.
func (p *plan) add(name string, db *database) error {
	if id := db.Info.Database; id != "" {
		if twin := p.byID[id]; twin != nil {
			return fmt.Errorf("databases.%s and databases.%s are the same database: give its queues one name", p.nameOf(twin), name)
		}
		p.byID[id] = db
	}
	p.databases = append(p.databases, db)
	p.byName[name] = db
	return nil
}

// owner is the database whose database gave out a lease with that id; nil: none of these did.
// The error is that one which was not reached yet may have.
func (p *plan) owner(id string) (*database, error) {
	if db := p.byID[id]; db != nil {
		return db, nil
	}
	for _, db := range p.databases {
		if db.Info.Database == "" {
			return nil, backends.Unavailable(fmt.Errorf("database %s was not reached since the sidecar began, and the lease may be of it (`qsidecar status` says why)", p.nameOf(db)))
		}
	}
	return nil, nil
}

// queue is what the configuration says of a name.
func (p *plan) queue(name string) (Queue, bool) {
	if q, ok := p.opts.Queues[name]; ok && name != "*" {
		return q, true
	}
	q, ok := p.opts.Queues["*"]
	return q, ok
}

// policy is what a claim of the queue writes into its rows.
func (p *plan) policy(name string) (backends.Policy, bool) {
	q, ok := p.queue(name)
	return backends.Policy{
		Queue:       name,
		MaxAttempts: q.MaxAttempts,
		Timeout:     q.Timeout,
		Backoff:     q.Backoff,
		BackoffMax:  q.BackoffMax,
		RetainDone:  q.Keep,
		RetainDead:  q.KeepDead,
		LIFO:        q.LIFO,
	}, ok
}

func (p *plan) maxAttempts(name string) int {
	q, ok := p.queue(name)
	if !ok {
		return DefaultMaxAttempts
	}
	return q.MaxAttempts
}

// databaseOfQueue finds the database of the field "queue".
func (p *plan) databaseOfQueue(name string) (*database, *protocol.Error) {
	q, ok := p.queue(name)
	if !ok {
		return nil, unknownQueue(name)
	}
	return p.byName[q.Database], nil
}

// databaseOf finds the one database of the field "queues".
func (p *plan) databaseOf(queues []string) (*database, *protocol.Error) {
	var db *database
	for i, name := range queues {
		q, ok := p.queue(name)
		if !ok {
			e := unknownQueue(name)
			e.Field, e.Index = "queues", protocol.Some(int64(i))
			return nil, e
		}
		if of := p.byName[q.Database]; db == nil {
			db = of
		} else if db != of {
			return nil, protocol.BadField("queues", "queue %s is in database %s, queue %s in %s: one request takes queues of one database",
				queues[0], p.nameOf(db), name, p.nameOf(of))
		}
	}
	return db, nil
}

// databaseOfClaim finds the database of a claim's queues: of the field "queues", or of
// "queue" alone.
func (p *plan) databaseOfClaim(queues []string, single bool) (*database, *protocol.Error) {
	if single {
		return p.databaseOfQueue(queues[0])
	}
	return p.databaseOf(queues)
}

// policyIn is policy for a claim in that database; a queue that is not there has none.
func (p *plan) policyIn(db *database, name string) (backends.Policy, bool) {
	q, ok := p.queue(name)
	if !ok || p.byName[q.Database] != db {
		return backends.Policy{}, false
	}
	return p.policy(name)
}

func unknownQueue(name string) *protocol.Error {
	e := protocol.Errorf(protocol.CodeUnknownQueue, "no queue %q is configured, and there is no \"*\" queue for other names", name)
	e.Field = "queue"
	return e
}

// inspectable is bankOf for one queue whose database can be looked into.
func (p *plan) inspectable(queue string) (*database, *protocol.Error) {
	db, wire := p.databaseOfQueue(queue)
	if wire == nil && !db.Inspectable() {
		wire = protocol.Errorf(protocol.CodeUnsupported, "database %s cannot be looked into", p.nameOf(db))
	}
	return db, wire
}

// newJobs turns jobs of the wire into jobs of one database. field names the
// list they came in.
func (p *plan) newJobs(jobs []protocol.NewJob, field string, single bool) (*database, []backends.NewJob, *protocol.Error) {
	at := func(e *protocol.Error, i int) *protocol.Error {
		if !single {
			e.Index = protocol.Some(int64(i))
		}
		return e
	}
	var db *database
	out := make([]backends.NewJob, len(jobs))
	for i := range jobs {
		q, ok := p.queue(jobs[i].Queue)
		if !ok {
			return nil, nil, at(unknownQueue(jobs[i].Queue), i)
		}
		if of := p.byName[q.Database]; db == nil {
			db = of
		} else if db != of {
			return nil, nil, at(protocol.BadField(field, "queue %s is in another database than queue %s: one request is one transaction",
				jobs[i].Queue, jobs[0].Queue), i)
		}
		out[i] = storedJob(&jobs[i], q.KeyTTL)
	}
	return db, out, nil
}

// stats asks the queue's database, or all of them; then queues that are
// configured by name show even when they have no job.
func (p *plan) stats(ctx context.Context, queue string) ([]protocol.QueueStat, error) {
	if queue != "" {
		db, wire := p.inspectable(queue)
		if wire != nil {
			return nil, wire
		}
		return p.statsOf(ctx, db, queue)
	}
	out := []protocol.QueueStat{}
	seen := make(map[string]bool)
	for _, db := range p.databases {
		if !db.Inspectable() {
			continue
		}
		part, err := p.statsOf(ctx, db, "")
		if err != nil {
			return nil, err
		}
		for i := range part {
			q, ok := p.queue(part[i].Queue)
			if !ok || p.byName[q.Database] != db {
				continue // jobs of a queue that is not served here (any more)
			}
			seen[part[i].Queue] = true
			out = append(out, part[i])
		}
	}
	for name := range p.opts.Queues {
		if name != "*" && !seen[name] {
			out = append(out, protocol.QueueStat{Queue: name})
		}
	}
	slices.SortFunc(out, func(a, b protocol.QueueStat) int { return cmp.Compare(a.Queue, b.Queue) })
	return out, nil
}

func (p *plan) statsOf(ctx context.Context, db *database, queue string) ([]protocol.QueueStat, error) {
	stats, err := db.Stats(ctx, queue)
	if err != nil {
		return nil, err
	}
	out := make([]protocol.QueueStat, len(stats))
	for i := range stats {
		out[i] = wireStats(&stats[i])
	}
	if len(out) == 0 && queue != "" {
		out = append(out, protocol.QueueStat{Queue: queue})
	}
	return out, nil
}
