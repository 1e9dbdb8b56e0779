package bridge

import (
	"errors"
	"slices"
	"sync"
)

// ErrNotRunning is returned by Reload if the Bridge does not run.
var ErrNotRunning = errors.New("the sidecar is not running, or stopping")

// Reload replaces the current options. It applies all of them, or none if it returns an error. Requests in progress
// end under the options that they began with. Reload closes only the connections of removed sockets. Their clients
// keep their leases for the restart grace, as over a restart. Claims that wait continue to wait in the database where
// their queues are now.
//
// If a database has a new Backend for the same database, Reload uses the new one from now on. It calls Database.Done
// of the old one when the last call to it has ended. A database that was removed stays open until the last lease in
// it has ended. If Reload fails, it uses nothing of o and calls no Done.
func (b *Bridge) Reload(o Options) error {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return err
	}
	b.reload.Lock()
	defer b.reload.Unlock()
	r, old := b.running, b.config.Load()
	if r == nil {
		return ErrNotRunning
	}
	next, fresh, err := b.successor(old, o)
	if err != nil {
		return err
	}
	added, err := b.listenNew(r, old, o.Sockets)
	if err != nil {
		return err
	}
	b.label(next) // only now: a config that is refused gets no metrics
	var join sync.WaitGroup
	for _, db := range fresh {
		join.Go(func() { db.Join(r.stop) })
	}
	join.Wait()
	for name, d := range o.Databases {
		db := next.byName[name]
		db.SetTimes(d.SidecarTimeout, d.RestartGrace)
		if !db.Uses(d.Backend) {
			db.Replace(d.Backend, d.Replica, d.Done)
		}
	}
	b.config.Store(next)
	for _, db := range fresh {
		b.runDatabase(r, db)
	}
	for _, db := range next.databases {
		next.Reroute(db.Pipeline)
		if !next.serves(db) && !db.retiring {
			db.retiring = true
			r.left.Go(func() { b.retire(r, db) })
		}
	}
	for path, ln := range added {
		r.listeners[path] = ln
		b.serve(r, ln)
	}
	b.dropSockets(r, next)
	b.setListening(r)
	return nil
}

// successor returns the config of o, which reuses existing databases, and the databases that are new in it.
func (b *Bridge) successor(old *config, o Options) (next *config, fresh []*database, err error) {
	databases := make(map[string]*database, len(o.Databases))
	var used []*database
	for name, d := range o.Databases {
		db := old.databaseFor(name, d.Backend)
		if db == nil {
			db = b.newDatabase(name, d)
			fresh = append(fresh, db)
		}
		databases[name], used = db, append(used, db)
	}
	if err := checkTwins(databases); err != nil {
		return nil, nil, err
	}
	removed := slices.DeleteFunc(slices.Clone(old.databases), func(db *database) bool { return slices.Contains(used, db) })
	return newConfig(o, databases, removed), fresh, nil
}
