package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
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
	r, old := b.running, b.plan.Load()
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
	b.plan.Store(next)
	for _, db := range fresh {
		b.runDatabase(r, db)
	}
	for _, db := range next.databases {
		db.follow(next)
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

// successor returns the plan of o, which reuses existing databases, and the databases that are new in it.
func (b *Bridge) successor(old *plan, o Options) (next *plan, fresh []*database, err error) {
	next = newPlan(o)
	for name, d := range o.Databases {
		db := old.databaseFor(name, d.Backend)
		if db == nil {
			db = b.newDatabase(name, d)
			fresh = append(fresh, db)
		}
		if err := next.add(name, db); err != nil {
			return nil, nil, err
		}
	}
	for _, db := range old.databases {
		if !slices.Contains(next.databases, db) {
			next.databases = append(next.databases, db)
			if db.Info.Database != "" {
				next.byID[db.Info.Database] = db
			}
		}
	}
	return next, fresh, nil
}

// databaseFor returns the plan's entry for the backend's database, or nil if there is none. A database that was not
// reached yet is recognized by its Backend alone.
func (p *plan) databaseFor(name string, backend backends.Backend) *database {
	if id := backend.Info().Database; id != "" {
		return p.byID[id]
	}
	if db := p.byName[name]; db != nil && db.Uses(backend) {
		return db
	}
	return nil
}

// serves reports whether the plan names db.
func (p *plan) serves(db *database) bool {
	for _, b := range p.byName {
		if b == db {
			return true
		}
	}
	return false
}

// nameOf returns the plan's name of db, or its last name if the plan does not name it.
func (p *plan) nameOf(db *database) string {
	for name, b := range p.byName {
		if b == db {
			return name
		}
	}
	return db.Name
}

// without returns a copy of the plan without a database that it does not serve.
func (p *plan) without(gone *database) *plan {
	next := *p
	next.databases = slices.DeleteFunc(slices.Clone(p.databases), func(b *database) bool { return b == gone })
	next.byID = maps.Clone(p.byID)
	delete(next.byID, gone.Info.Database)
	return &next
}

// retire ends a database when the last lease in it has ended, unless a reload puts it back into service.
func (b *Bridge) retire(r *running, db *database) {
	check := time.NewTicker(drainCheck)
	defer check.Stop()
	for {
		select {
		case <-check.C:
		case <-r.stop.Done():
			return // Run ends it with all others
		}
		if db.Leases() > 0 {
			continue
		}
		if b.leaves(db) {
			if err := db.end(); err != nil {
				b.log.Warn("can't leave a removed database", "event", "database_leave_failed", "error", err)
			}
			db.Pipeline.Retire()
			db.account()
			if db.Info.Database == "" {
				return // it was never reached
			}
			b.log.Info("left a removed database", "event", "database_left", "address", db.Info.Address)
		}
		return
	}
}

// leaves removes a retiring database from the plan. It returns false if the database is in service again, or if Run
// is stopping, which ends it.
func (b *Bridge) leaves(db *database) bool {
	b.reload.Lock()
	defer b.reload.Unlock()
	p := b.plan.Load()
	if b.running == nil || p.serves(db) {
		db.retiring = false
		return false
	}
	b.plan.Store(p.without(db))
	return true
}

// listenNew adjusts the sockets that stay and listens on the new ones. It does all of this or none.
func (b *Bridge) listenNew(r *running, old *plan, sockets []Socket) (added map[string]*unixsocket.Listener, err error) {
	added = make(map[string]*unixsocket.Listener)
	var undo []func() error
	defer func() {
		if err == nil {
			return
		}
		for _, f := range undo {
			err = errors.Join(err, f())
		}
		err = errors.Join(err, closeAll(added))
		added = nil
	}()
	for _, s := range sockets {
		ln := r.listeners[s.Path]
		if ln == nil {
			if err = errors.Join(isServed(r.listeners, s.Path), isServed(added, s.Path)); err == nil {
				ln, err = b.system.listen(s.file(b.log))
			}
			if err != nil {
				return added, fmt.Errorf("socket %s: %w", s.Path, err)
			}
			added[s.Path] = ln
			continue
		}
		was := old.socket(s.Path)
		if was.Mode == s.Mode && was.Group == s.Group || ln.IsInherited() {
			continue
		}
		undo = append(undo, func() error { return ln.Adjust(was.file(b.log)) })
		if err = ln.Adjust(s.file(b.log)); err != nil {
			return added, fmt.Errorf("socket %s: %w", s.Path, err)
		}
	}
	return added, nil
}

// socket returns the socket at the path, or a zero Socket if there is none.
func (p *plan) socket(path string) Socket {
	i := slices.IndexFunc(p.opts.Sockets, func(s Socket) bool { return s.Path == path })
	if i < 0 {
		return Socket{}
	}
	return p.opts.Sockets[i]
}

// dropSockets closes the sockets that the plan does not have, and their connections. b.reload is held.
func (b *Bridge) dropSockets(r *running, p *plan) {
	for path, ln := range r.listeners {
		if p.socket(path).Path != "" {
			continue
		}
		delete(r.listeners, path)
		if err := ln.Close(); err != nil {
			b.log.Error("can't remove a socket", "event", "socket_removal_failed", "socket", path, "error", err)
		}
		b.mu.Lock()
		for s := range b.sessions {
			if s.socket == path {
				s.close()
			}
		}
		b.mu.Unlock()
	}
}

// releaseAfterGrace releases the jobs of a session whose connection a reload closed. It waits for the restart grace first, in
// which the worker can settle them over another connection.
func (b *Bridge) releaseAfterGrace(s *session) {
	b.reload.Lock()
	defer b.reload.Unlock()
	r := b.running
	if r == nil {
		return // stopping: the leases outlive the connection
	}
	for _, db := range b.plan.Load().databases {
		if !db.Holds(&s.quota) {
			continue
		}
		r.left.Go(func() {
			grace := time.NewTimer(db.RestartGrace())
			defer grace.Stop()
			select {
			case <-grace.C:
				s.release(db, s.lossBy(errServer))
			case <-r.stop.Done():
				db.Orphan(&s.quota) // no connection holds them, so the drain does not wait for them
			}
		})
	}
}

// runDatabase runs a database until Run ends, or database.end is called. b.reload is held.
func (b *Bridge) runDatabase(r *running, db *database) {
	ctx, stopHouse := context.WithCancel(r.stop)
	work, stopWork := context.WithCancel(r.work)
	ended := make(chan error, 1)
	db.end = sync.OnceValue(func() error {
		stopHouse()
		stopWork()
		return <-ended
	})
	go func() { ended <- db.Run(ctx, work, r.hard) }()
}
