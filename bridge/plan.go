package bridge

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// plan is the running form of one configuration. It never changes: a reload replaces it, and a request keeps the plan
// that it began with.
type plan struct {
	opts      Options
	limits    protocol.Limits
	databases []*database
	byName    map[string]*database // by name in the options
	byID      map[string]*database // by the database's random id; only databases that were reached
	limited   bool                 // at least one queue has a MaxReady
}

// newPlan returns the plan of validated options, without its databases.
func newPlan(o Options) *plan {
	p := &plan{opts: o, limits: protocol.NewLimits(o.MaxFrame), byName: make(map[string]*database), byID: make(map[string]*database)}
	for _, q := range o.Queues {
		p.limited = p.limited || q.MaxReady > 0
	}
	return p
}

// add adds a database to the plan under its name in the options. It returns an error if the plan already has the same
// database under another name.
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

// owner returns the database that issued a lease with that id, or nil if none of these did. It returns an error if a
// database was not reached yet, because that one could have issued the lease.
func (p *plan) owner(id string) (*database, error) {
	if db := p.byID[id]; db != nil {
		return db, nil
	}
	for _, db := range p.databases {
		if db.Info.Database == "" {
			return nil, backends.Unavailable(fmt.Errorf("database %s was not reached since the sidecar started, so its leases can't be checked (`qsidecar status` shows why)", p.nameOf(db)))
		}
	}
	return nil, nil
}

// queue returns the configuration of a queue, and whether there is one. "*" stands for names without an entry.
func (p *plan) queue(name string) (Queue, bool) {
	if q, ok := p.opts.Queues[name]; ok && name != "*" {
		return q, true
	}
	q, ok := p.opts.Queues["*"]
	return q, ok
}

// policy returns the policy that a claim writes into the queue's rows.
func (p *plan) policy(name string) (backends.Policy, bool) {
	q, ok := p.queue(name)
	return backends.Policy{
		Queue:       name,
		MaxAttempts: q.MaxAttempts,
		Timeout:     q.Timeout,
		Backoff:     q.Backoff,
		BackoffMax:  q.BackoffMax,
		RetainDone:  q.RetainDone,
		RetainDead:  q.RetainDead,
		LIFO:        q.LIFO,
	}, ok
}

// jitter returns by which part of itself a back-off of the queue can become longer or shorter. A job of a queue that
// isn't in the config was claimed by another sidecar.
func (p *plan) jitter(name string) float64 {
	q, ok := p.queue(name)
	if !ok {
		return DefaultJitter
	}
	return q.Jitter
}

func (p *plan) maxAttempts(name string) int {
	q, ok := p.queue(name)
	if !ok {
		return DefaultMaxAttempts
	}
	return q.MaxAttempts
}

// databaseOfQueue returns the database of the queue in the field "queue".
func (p *plan) databaseOfQueue(name string) (*database, *protocol.Error) {
	q, ok := p.queue(name)
	if !ok {
		return nil, unknownQueue(name)
	}
	return p.byName[q.Database], nil
}

// databaseOf returns the one database of all queues in the field "queues".
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

// databaseOfClaim returns the database of a claim's queues. They come from the field "queues", or from "queue" if
// single is set.
func (p *plan) databaseOfClaim(queues []string, single bool) (*database, *protocol.Error) {
	if single {
		return p.databaseOfQueue(queues[0])
	}
	return p.databaseOf(queues)
}

// policyIn returns the policy of a queue, and false if the queue is not in that database.
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

// inspectable is databaseOfQueue for a queue whose database supports inspection.
func (p *plan) inspectable(queue string) (*database, *protocol.Error) {
	db, wire := p.databaseOfQueue(queue)
	if wire == nil && !db.Inspectable() {
		wire = protocol.Errorf(protocol.CodeUnsupported, "database %s doesn't support inspection", p.nameOf(db))
	}
	return db, wire
}

// newJobs converts the jobs of a request to jobs of one database. field names the list that they came in.
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
		out[i] = wirejob.Stored(&jobs[i], q.KeyTTL)
	}
	return db, out, nil
}

// statsReader is Pipeline.Stats or Pipeline.ReplicaStats.
type statsReader func(db *database, ctx context.Context, queue string) ([]backends.QueueStats, error)

// stats returns the stats of one queue, or of all databases if queue is empty. In that case it also lists queues that
// are configured by name and have no jobs.
func (p *plan) stats(ctx context.Context, queue string, read statsReader) ([]protocol.QueueStat, error) {
	if queue != "" {
		db, wire := p.inspectable(queue)
		if wire != nil {
			return nil, wire
		}
		return p.statsOf(ctx, db, queue, read)
	}
	out := []protocol.QueueStat{}
	seen := make(map[string]bool)
	for _, db := range p.databases {
		if !p.serves(db) || !db.Inspectable() {
			continue
		}
		part, err := p.statsOf(ctx, db, "", read)
		if err != nil {
			return nil, err
		}
		for i := range part {
			q, ok := p.queue(part[i].Queue)
			if !ok || p.byName[q.Database] != db {
				continue // jobs of a queue that is not served here, or no longer
			}
			seen[part[i].Queue] = true
			out = append(out, part[i])
		}
	}
	for name := range p.opts.Queues {
		if name != "*" && !seen[name] {
			out = append(out, p.byName[p.opts.Queues[name].Database].counted(protocol.QueueStat{Queue: name}))
		}
	}
	slices.SortFunc(out, func(a, b protocol.QueueStat) int { return cmp.Compare(a.Queue, b.Queue) })
	return out, nil
}

func (p *plan) statsOf(ctx context.Context, db *database, queue string, read statsReader) ([]protocol.QueueStat, error) {
	stats, err := read(db, ctx, queue)
	if err != nil {
		return nil, err
	}
	out := make([]protocol.QueueStat, len(stats))
	for i := range stats {
		out[i] = db.counted(wirejob.FromStats(&stats[i]))
	}
	if len(out) == 0 && queue != "" {
		out = append(out, db.counted(protocol.QueueStat{Queue: queue}))
	}
	return out, nil
}

// counted adds the counters of this sidecar.
func (b *database) counted(q protocol.QueueStat) protocol.QueueStat {
	if enqueued, acked, ok := b.Metrics.Load().Totals(q.Queue); ok {
		q.Enqueued, q.Acked = protocol.Some(enqueued), protocol.Some(acked)
	}
	return q
}
