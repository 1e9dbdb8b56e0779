package bridge

import (
	"fmt"
	"slices"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/permission"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
)

// config is one configuration as it runs: the plan that sessions use, and what only the server needs. It never changes.
type config struct {
	*plan.Plan
	opts      Options
	byName    map[string]*database // by name in the options
	databases []*database          // those of byName, and those that a reload removed and that still have leases
}

// newConfig returns the config of validated options. byName has the databases of the options, and removed has those that
// still have leases.
func newConfig(o Options, byName map[string]*database, removed []*database) *config {
	c := &config{opts: o, byName: byName}
	s := plan.Settings{
		Server:            o.Server,
		MaxFrame:          o.MaxFrame,
		JobsPerConnection: o.Limits.JobsPerConnection,
		QueueNames:        o.Limits.QueueNames,
		Queues:            make(map[string]*plan.Queue, len(o.Queues)),
		Rights:            make(map[string][]permission.Rule, len(o.Sockets)),
	}
	named := make(map[string]*plan.Database, len(byName))
	for name, db := range byName {
		named[name] = &plan.Database{Pipeline: db.Pipeline, Name: name, Served: true}
		s.Databases, c.databases = append(s.Databases, named[name]), append(c.databases, db)
	}
	for _, db := range removed {
		s.Databases, c.databases = append(s.Databases, &plan.Database{Pipeline: db.Pipeline, Name: db.Name}), append(c.databases, db)
	}
	for name, q := range o.Queues {
		s.Queues[name] = q.planned(named[q.Database])
	}
	for _, socket := range o.Sockets {
		s.Rights[socket.Path] = socket.Allow
	}
	c.Plan = plan.New(s)
	return c
}

// checkTwins returns an error if the same database has two names.
func checkTwins(byName map[string]*database) error {
	names := make(map[string]string, len(byName)) // by the database's random id
	for name, db := range byName {
		id := db.Info.Database
		if twin, ok := names[id]; ok && id != "" {
			return fmt.Errorf("databases.%s and databases.%s are the same database: give its queues one name", twin, name)
		}
		names[id] = name
	}
	return nil
}

// planned returns the queue as the plan has it.
func (q *Queue) planned(db *plan.Database) *plan.Queue {
	return &plan.Queue{
		Database: db,
		Policy: backends.Policy{
			MaxAttempts: q.MaxAttempts,
			Timeout:     q.Timeout,
			Backoff:     q.Backoff,
			BackoffMax:  q.BackoffMax,
			RetainDone:  q.RetainDone,
			RetainDead:  q.RetainDead,
			LIFO:        q.LIFO,
		},
		Jitter:      q.Jitter,
		KeyTTL:      q.KeyTTL,
		RetainBatch: q.RetainBatch,
		Expiry:      backends.Expiry{StartWithin: q.StartWithin, Remove: q.RemoveExpired, RetainDead: q.RetainDead},
		MaxReady:    int64(q.MaxReady),
	}
}

// databaseFor returns the config's database of the backend, or nil if there is none. A database that was not reached yet
// is recognized by its Backend alone.
func (c *config) databaseFor(name string, backend backends.Backend) *database {
	if id := backend.Info().Database; id != "" {
		return c.databaseOf(id)
	}
	if db := c.byName[name]; db != nil && db.Uses(backend) {
		return db
	}
	return nil
}

func (c *config) databaseOf(id string) *database {
	i := slices.IndexFunc(c.databases, func(db *database) bool { return db.Info.Database == id })
	if i < 0 {
		return nil
	}
	return c.databases[i]
}

// serves reports whether the config names db.
func (c *config) serves(db *database) bool {
	for _, named := range c.byName {
		if named == db {
			return true
		}
	}
	return false
}

// without returns a copy of the config without a database that it does not serve.
func (c *config) without(gone *database) *config {
	removed := slices.DeleteFunc(slices.Clone(c.databases), func(db *database) bool { return db == gone || c.serves(db) })
	return newConfig(c.opts, c.byName, removed)
}

// socket returns the socket at the path, or a zero Socket if there is none.
func (c *config) socket(path string) Socket {
	i := slices.IndexFunc(c.opts.Sockets, func(s Socket) bool { return s.Path == path })
	if i < 0 {
		return Socket{}
	}
	return c.opts.Sockets[i]
}

// database is the bridge's side of one database: its pipeline, and the state of reload and metrics.
type database struct {
	*pipeline.Pipeline
	accounts  sync.Mutex     // guards accounted
	accounted backends.Usage // the part of Usage that the metrics have already; see account

	// Bridge.reload guards these.
	retiring bool         // it ends when the last lease in it has ended
	end      func() error // ends the run and returns its error
}

// account adds the usage since the last call to the metrics of the current name. It is called before the name
// changes, when the database ends, and for each collection of the metrics.
func (d *database) account() {
	d.accounts.Lock()
	defer d.accounts.Unlock()
	u, ok := d.Usage()
	if !ok {
		return
	}
	d.Metrics.Load().AddUsage(u.Since(d.accounted))
	d.accounted = u
}
