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
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Adopter is an engine with its diagnostics, as the engine's diagnose package adds them.
type Adopter interface {
	backends.Adopter
	backends.Advisor
	backends.Examiner
}

// Store is an engine's backend with adopted queues beside the managed ones.
type Store struct {
	Adopter
	g      backends.Dialect
	tables map[string]*table // by queue
	former map[string]*table // of queues that only a Store before this one had; see Succeed
	sweeps sweeps
	counts batch.Estimates
	holds  *holds

	closing sync.Once
	closed  error // of the first Close
}

var _ interface {
	backends.Backend
	backends.Inspector
	backends.Notifier
	backends.Mixed
} = (*Store)(nil)

// New holds the tables, by the names of their queues, against the database. The
// error has everything that is wrong with them.
func New(ctx context.Context, engine Adopter, tables map[string]Table) (*Store, error) {
	s, wrong, err := Look(ctx, engine, tables)
	if err != nil {
		return nil, err
	}
	if len(wrong) > 0 {
		return nil, joined(wrong)
	}
	return s, nil
}

// Bare is a Store without any tables: one that is there to Succeed another.
func Bare(engine Adopter) *Store {
	return &Store{Adopter: engine, g: engine.Dialect(), tables: map[string]*table{}, holds: newHolds()}
}

// Look is New for who wants to know: the Store has those queues that fit. An error is
// one of the database, and not of the tables.
func Look(ctx context.Context, engine Adopter, tables map[string]Table) (*Store, []*Misfit, error) {
	s := Bare(engine)
	var wrong []*Misfit
	for _, queue := range slices.Sorted(maps.Keys(tables)) {
		p := &problems{queue: queue}
		t, err := s.adopt(ctx, p, tables[queue])
		if err != nil {
			return nil, nil, err
		}
		wrong = append(wrong, p.all...)
		if len(p.all) == 0 {
			s.tables[queue] = t
		}
	}
	return s, wrong, nil
}

func (s *Store) adopt(ctx context.Context, p *problems, m Table) (*table, error) {
	info, err := s.Describe(ctx, m.Schema, m.Name)
	if err != nil {
		return nil, fmt.Errorf("queues.%s.table: %w", p.queue, err)
	}
	m = m.spelled(info)
	t := compile(p, m, info, s.g)
	s.hears(p, m.Notify)
	if t == nil {
		return nil, nil
	}
	if m.Hold {
		if err := s.noHold(); err != nil {
			p.wrong("hold", "say hold: state, with a state for jobs that are worked on (states.claimed)", "its jobs cannot be held in transactions: %v", err)
		}
	}
	if m.OnAck == Archive {
		to, err := s.Describe(ctx, m.ArchiveSchema, m.Archive)
		if err != nil {
			return nil, fmt.Errorf("queues.%s.on_ack: %w", p.queue, err)
		}
		t.archives(p, alike(to, info))
	}
	if len(p.all) == 0 {
		t.index, t.sought = t.serving(s.RowOrdering())
		_, err = s.Explain(ctx, &backends.Statement{
			Text: s.g.SelectLocked(outputs(s.g.ToText("1")), t.name, strings.Join(t.waits(), " AND "), t.order(), 0, false),
		}, info)
		if err != nil && (backends.Retryable(err) || ctx.Err() != nil) {
			return nil, err
		}
		if err != nil && !errors.Is(err, backends.ErrNoPlan) {
			p.add("table", "the database refuses to look for jobs in it: %v", err)
		}
	}
	return t, nil
}

// noHold says why no jobs can be held in this database; nil: they can.
func (s *Store) noHold() error {
	h, ok := s.Adopter.(backends.TxClaimer)
	if !ok {
		return fmt.Errorf("a sidecar keeps no transactions open on %s", s.Info().Engine)
	}
	return h.NoOpenTx()
}

// Adopted implements backends.Mixed.
func (s *Store) Adopted(queue string) bool { return s.tables[queue] != nil }

// Notifications implements backends.Notifier. With the engine's come those that the
// tables' owners send.
func (s *Store) Notifications(ctx context.Context) (<-chan string, bool) {
	channels := map[string][]string{}
	for _, q := range s.queues() {
		if channel := s.tables[q].Notify; channel != "" {
			channels[channel] = append(channels[channel], q)
		}
	}
	if h, ok := s.Adopter.(backends.ChannelListener); ok && len(channels) > 0 {
		return h.Listen(ctx, channels)
	}
	if n, ok := s.Adopter.(backends.Notifier); ok {
		return n.Notifications(ctx)
	}
	return nil, false
}

// hears holds the channel of a table against what the engine can listen to.
func (s *Store) hears(p *problems, channel string) {
	if channel == "" {
		return
	}
	h, ok := s.Adopter.(backends.ChannelListener)
	if !ok {
		p.wrong("notify", "leave it out: a sidecar looks for new jobs about once a second", "%s sends no notifications", s.Info().Engine)
		return
	}
	if err := h.CanListen(channel); err != nil {
		p.add("notify", "%v", err)
	}
}

// queues are the names of the adopted ones.
func (s *Store) queues() []string { return slices.Sorted(maps.Keys(s.tables)) }

// known are the names of queues whose jobs it can settle and take back.
func (s *Store) known() []string {
	return append(s.queues(), slices.Sorted(maps.Keys(s.former))...)
}

// tableOf is where the jobs of a queue are that were claimed; nil: it is not known.
func (s *Store) tableOf(queue string) *table {
	return cmp.Or(s.tables[queue], s.former[queue])
}

// Held implements backends.Backend: the managed jobs first, then the adopted ones.
func (s *Store) ClaimedBy(ctx context.Context, host backends.Identity, after string, limit int) (all []backends.ClaimedJob, err error) {
	last, adopted := handled(after)
	if !adopted {
		if all, err = s.Adopter.ClaimedBy(ctx, host, after, limit); err != nil || len(all) >= limit {
			return all, err
		}
	}
	x := &settling{s: s, leases: map[int64]*lease{}}
	st := x.query("SELECT "+leaseColumns(s.g)+" FROM "+s.g.SidecarTable(leasesTable)+" l WHERE l.token_host IS NOT NULL AND l.owner = "+s.g.IntArg(1)+
		" AND l.id > "+s.g.IntArg(2), int64(host), last)
	if err := s.Query(ctx, st); err != nil {
		return nil, err
	}
	for _, j := range s.holds.all(func(j *held) bool { return j.lease.host == int64(host) && j.lease.id > last }) {
		x.leases[j.lease.id] = j.lease
	}
	for _, id := range slices.Sorted(maps.Keys(x.leases)) {
		if len(all) == limit {
			break
		}
		l := x.leases[id]
		all = append(all, backends.ClaimedJob{Lease: l.proof(), Queue: l.queue, Timed: l.leaseMS > 0})
	}
	return all, nil
}

// proof is the lease that the claim gave.
func (l *lease) proof() backends.Lease {
	return backends.Lease{Job: handle(l.id), Token: backends.Token{Host: backends.Identity(l.host), Number: uint64(l.number)}}
}

// Usage implements backends.Metered: it is the engine's.
func (s *Store) Usage() backends.Usage {
	if m, ok := s.Adopter.(backends.Metered); ok {
		return m.Usage()
	}
	return backends.Usage{}
}
