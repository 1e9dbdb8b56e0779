// Package adopted has queues live in tables that somebody else owns, beside that
// owner's own consumers (design.md §6). It wraps an engine's backend: the managed
// queues are the engine's as before, and what there is to know of an adopted job
// and has no column in its table is kept in a table of the sidecar's own,
// qsidecar_leases, written in the same transaction as the job's row.
//
// A settle changes the row only while it still shows the claim that the lease is
// for: its state, and what the claim wrote into the columns in the roles worker,
// claimed_at and token. A row that no lease names is its owner's business.
package adopted

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Store is an engine's backend with adopted queues beside the managed ones.
type Store struct {
	backends.Adopter
	g      backends.Grammar
	tables map[string]*table // by queue
	sweeps sweeps
	counts batch.Estimates
}

var _ interface {
	backends.Backend
	backends.Inspector
	backends.Notifier
	backends.Mixed
} = (*Store)(nil)

// New holds the tables, by the names of their queues, against the database. The
// error has everything that is wrong with them.
func New(ctx context.Context, engine backends.Adopter, tables map[string]Table) (*Store, error) {
	s := &Store{Adopter: engine, g: engine.Grammar(), tables: map[string]*table{}}
	var wrong error
	for _, queue := range slices.Sorted(maps.Keys(tables)) {
		t, err := s.adopt(ctx, queue, tables[queue])
		if err != nil && (backends.Retryable(err) || ctx.Err() != nil) {
			return nil, err
		}
		wrong = errors.Join(wrong, err)
		s.tables[queue] = t
	}
	if wrong != nil {
		return nil, wrong
	}
	return s, nil
}

func (s *Store) adopt(ctx context.Context, queue string, m Table) (*table, error) {
	info, err := s.Describe(ctx, m.Schema, m.Name)
	if err != nil {
		return nil, fmt.Errorf("queues.%s.table: %w", queue, err)
	}
	t, err := compile(queue, m, info, s.g)
	if err != nil || m.OnAck != Archive {
		return t, err
	}
	to, err := s.Describe(ctx, m.ArchiveSchema, m.Archive)
	if err != nil {
		return nil, fmt.Errorf("queues.%s.on_ack: %w", queue, err)
	}
	if len(to.Columns) == 0 {
		return nil, fmt.Errorf("queues.%s.on_ack: there is no table %s to move rows to", queue, m.Archive)
	}
	t.archTo = s.g.Table(to.Schema, to.Name)
	for _, c := range to.Columns {
		if _, both := info.Column(c.Name); both && !c.Generated {
			t.archive = append(t.archive, c.Name)
		}
	}
	if len(t.archive) == 0 {
		return nil, fmt.Errorf("queues.%s.on_ack: the tables %s and %s have no column in common", queue, info.Name, to.Name)
	}
	return t, nil
}

// Adopted implements backends.Mixed.
func (s *Store) Adopted(queue string) bool { return s.tables[queue] != nil }

// Notifications implements backends.Notifier.
func (s *Store) Notifications(ctx context.Context) (<-chan string, bool) {
	if n, ok := s.Adopter.(backends.Notifier); ok {
		return n.Notifications(ctx)
	}
	return nil, false
}

// queues are the names of the adopted ones.
func (s *Store) queues() []string { return slices.Sorted(maps.Keys(s.tables)) }

// Held implements backends.Backend: the managed jobs first, then the adopted ones.
func (s *Store) Held(ctx context.Context, host backends.Identity, after string, limit int) (all []backends.Held, err error) {
	last, adopted := handled(after)
	if !adopted {
		if all, err = s.Adopter.Held(ctx, host, after, limit); err != nil || len(all) >= limit {
			return all, err
		}
	}
	x := &settling{s: s, leases: map[int64]*lease{}}
	st := x.query("SELECT "+leaseColumns(s.g)+" FROM "+s.g.Own(leasesTable)+" l WHERE l.token_host IS NOT NULL AND l.owner = "+s.g.Number(1)+
		" AND l.id > "+s.g.Number(2), int64(host), last)
	if err := s.Ask(ctx, st); err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(x.leases)) {
		if len(all) == limit {
			break
		}
		l := x.leases[id]
		all = append(all, backends.Held{Lease: l.proof(), Queue: l.queue, Timed: l.leaseMS > 0})
	}
	return all, nil
}

// proof is the lease that the claim gave.
func (l *lease) proof() backends.Lease {
	return backends.Lease{Job: handle(l.id), Token: backends.Token{Host: backends.Identity(l.host), Number: uint64(l.number)}}
}
