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

// ErrNotRunning says: a Bridge can be reloaded only while it runs.
var ErrNotRunning = errors.New("the sidecar is not running, or stopping")

// Reload puts other options in the place of those that run, whole or, with an error,
// not at all. Requests end by the options that they began with. No connection is
// closed but those of sockets that are gone: what they hold stays theirs for the
// restart grace, as over a restart. Claims that wait go on waiting where their
// queues are now.
//
// A database whose Backend is another one than before, of the same database, is
// used through that from now on; Database.Done of the old one is told when its last
// call has ended. One that is not named any more stays open until the last lease
// in it has ended. Where Reload fails nothing of o is used, and no Done is called.
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
	b.label(next) // a config that is refused has no metrics
	var join sync.WaitGroup
	for _, bank := range fresh {
		join.Go(func() { bank.join(r.stop) })
	}
	join.Wait()
	for name, d := range o.Databases {
		bank := next.bankBy[name]
		bank.setTimes(d.HostLease, d.RestartGrace)
		if !bank.uses(d.Backend) {
			bank.replace(d.Backend, d.Done)
		}
	}
	b.plan.Store(next)
	for _, bank := range fresh {
		b.runBank(r, bank)
	}
	for _, bank := range next.banks {
		bank.follow(next)
		if !next.serves(bank) && !bank.retiring {
			bank.retiring = true
			r.left.Go(func() { b.retire(r, bank) })
		}
	}
	for path, ln := range added {
		r.listeners[path] = ln
		b.serve(r, ln)
	}
	b.dropSockets(r, next)
	return nil
}

// successor is the plan of o, over the banks that are there, and those that are new in it.
func (b *Bridge) successor(old *plan, o Options) (next *plan, fresh []*bank, err error) {
	next = newPlan(o)
	for name, d := range o.Databases {
		bank := old.bankFor(name, d.Backend)
		if bank == nil {
			bank = b.newBank(name, d)
			fresh = append(fresh, bank)
		}
		if err := next.add(name, bank); err != nil {
			return nil, nil, err
		}
	}
	for _, bank := range old.banks {
		if !slices.Contains(next.banks, bank) {
			next.banks = append(next.banks, bank)
			if bank.info.Database != "" {
				next.bankByID[bank.info.Database] = bank
			}
		}
	}
	return next, fresh, nil
}

// bankFor is the bank of the same database; nil: there is none. A database that was not
// reached yet is known by its Backend alone.
func (p *plan) bankFor(name string, backend backends.Backend) *bank {
	if id := backend.Info().Database; id != "" {
		return p.bankByID[id]
	}
	if bank := p.bankBy[name]; bank != nil && bank.uses(backend) {
		return bank
	}
	return nil
}

// serves reports whether the plan names the bank's database.
func (p *plan) serves(bank *bank) bool {
	for _, b := range p.bankBy {
		if b == bank {
			return true
		}
	}
	return false
}

// nameOf is what the plan calls the bank's database, or what it was called.
func (p *plan) nameOf(bank *bank) string {
	for name, b := range p.bankBy {
		if b == bank {
			return name
		}
	}
	return bank.name
}

// without is the plan without a bank that it does not serve.
func (p *plan) without(gone *bank) *plan {
	next := *p
	next.banks = slices.DeleteFunc(slices.Clone(p.banks), func(b *bank) bool { return b == gone })
	next.bankByID = maps.Clone(p.bankByID)
	delete(next.bankByID, gone.info.Database)
	return &next
}

// retire ends a bank when the last lease in it has ended, unless a reload takes it
// into service again.
func (b *Bridge) retire(r *running, bank *bank) {
	check := time.NewTicker(drainCheck)
	defer check.Stop()
	for {
		select {
		case <-check.C:
		case <-r.stop.Done():
			return // Run ends it, with all others
		}
		if bank.leases() > 0 {
			continue
		}
		if b.leaves(bank) {
			if err := bank.end(); err != nil {
				b.log.Warn("a database that is not configured any more was left", "error", err)
			}
			bank.pipeline.retire()
			bank.account()
			if bank.info.Database == "" {
				return // it never was one
			}
			b.log.Info("a database that is not configured any more was left: no lease is open in it", "place", bank.info.Address)
		}
		return
	}
}

// leaves takes a retiring bank out of the plan. false: it is in service again, or Run is
// stopping and ends it.
func (b *Bridge) leaves(bank *bank) bool {
	b.reload.Lock()
	defer b.reload.Unlock()
	p := b.plan.Load()
	if b.running == nil || p.serves(bank) {
		bank.retiring = false
		return false
	}
	b.plan.Store(p.without(bank))
	return true
}

// listenNew adjusts the sockets that stay and listens on new ones: all of it or nothing.
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
				ln, err = b.system.listen(s.file())
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
		undo = append(undo, func() error { return ln.Adjust(was.file()) })
		if err = ln.Adjust(s.file()); err != nil {
			return added, fmt.Errorf("socket %s: %w", s.Path, err)
		}
	}
	return added, nil
}

// socket is the one at the path.
func (p *plan) socket(path string) Socket {
	i := slices.IndexFunc(p.opts.Sockets, func(s Socket) bool { return s.Path == path })
	if i < 0 {
		return Socket{}
	}
	return p.opts.Sockets[i]
}

// dropSockets closes the sockets that the plan does not have, and their connections.
// b.reload is held.
func (b *Bridge) dropSockets(r *running, p *plan) {
	for path, ln := range r.listeners {
		if p.socket(path).Path != "" {
			continue
		}
		delete(r.listeners, path)
		if err := ln.Close(); err != nil {
			b.log.Error("a socket that is not configured any more could not be removed", "socket", path, "error", err)
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

// parted gives back what a session held whose connection a reload closed, unless
// its worker came back for it within the restart grace.
func (b *Bridge) parted(s *session) {
	b.reload.Lock()
	defer b.reload.Unlock()
	r := b.running
	if r == nil {
		return // stopping: the leases outlive it
	}
	for _, bank := range b.plan.Load().banks {
		if !bank.holds(&s.account) {
			continue
		}
		r.left.Go(func() {
			grace := time.NewTimer(bank.restartGrace())
			defer grace.Stop()
			select {
			case <-grace.C:
				s.release(bank, backends.Release{Cause: backends.CauseDisconnected, Message: errServer.Error()})
			case <-r.stop.Done():
			}
		})
	}
}

// runBank runs a bank until Run ends, or bank.end is called. b.reload is held.
func (b *Bridge) runBank(r *running, bank *bank) {
	ctx, stopHouse := context.WithCancel(r.stop)
	work, stopWork := context.WithCancel(r.work)
	ended := make(chan error, 1)
	bank.end = sync.OnceValue(func() error {
		stopHouse()
		stopWork()
		return <-ended
	})
	go func() { ended <- bank.run(ctx, work, r.hard) }()
}
