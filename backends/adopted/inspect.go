package adopted

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Stats implements backends.Inspector. What the table's own consumers have claimed
// counts as claimed; of held jobs only those that are held here do, for nothing in
// the database tells the others from those that wait.
func (s *Store) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	all, err := s.Adopter.Stats(ctx, queue)
	if err != nil || queue != "" && !s.Adopted(queue) {
		return all, err
	}
	queues := s.queues()
	if queue != "" {
		queues = []string{queue}
	}
	paused := map[string]bool{}
	for _, st := range all {
		paused[st.Queue] = st.Paused
	}
	all = slices.DeleteFunc(all, func(st backends.QueueStats) bool { return s.Adopted(st.Queue) })
	for _, q := range queues {
		st := backends.QueueStats{Queue: q, Paused: paused[q]}
		if err := s.count(ctx, s.tables[q], &st); err != nil {
			return nil, err
		}
		s.holds.count(q, &st)
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b backends.QueueStats) int { return cmp.Compare(a.Queue, b.Queue) })
	return all, nil
}

// in are the conditions of the rows in a state, as a sidecar sees them; nil: the
// table has no such state.
func (t *table) in(state backends.State) []string {
	limit := cmp.Or(t.MaxAttempts, noLimit)
	attempts, counts := t.one[Attempts]
	switch state {
	case backends.StateReady:
		return []string{t.claimable(limit)}
	case backends.StateScheduled:
		later := []string{t.remembered(fmt.Sprintf("l.not_before > %s AND l.not_before < %d", t.g.NowMillis(), int64(never)))}
		if c, has := t.one[RunAt]; has {
			later = append(later, t.yet(c))
		}
		all := append(t.waits(), "("+strings.Join(later, " OR ")+")")
		if counts {
			all = append(all, fmt.Sprintf("coalesce(%s, 0) < %s", t.g.Name(attempts.Name), t.limit(limit)))
		}
		return all
	case backends.StateDead:
		var tired []string // of attempts, whoever made them
		if counts {
			tired = append(t.waits(), fmt.Sprintf("%s >= %s", t.g.Name(attempts.Name), t.limit(limit)))
		}
		shown := t.shows(state)
		switch {
		case shown != nil && counts:
			return append(t.inQueue(), "("+shown[0]+" OR "+strings.Join(tired, " AND ")+")")
		case shown != nil:
			return append(t.inQueue(), shown...)
		case counts:
			return tired
		}
		return append(t.waits(), t.remembered(fmt.Sprintf("l.not_before = %d", int64(never))))
	case backends.StateClaimed:
		c, marked := t.marker()
		if t.Hold {
			return nil // its row does not say it
		}
		all := append(t.inQueue(), t.taken()...)
		if marked {
			all = append(all, t.g.Name(c.Name)+" IS NOT NULL")
		}
		return all
	default:
		shown := t.shows(state)
		if shown == nil || t.OnAck != Update {
			return nil
		}
		return append(t.inQueue(), shown...)
	}
}

// noLimit is more than any limit of attempts.
const noLimit = 1 << 15

func (s *Store) count(ctx context.Context, t *table, st *backends.QueueStats) error {
	var asks []*backends.Statement
	for state, n := range batch.Counts(st) {
		if where := t.in(state); where != nil {
			asks = append(asks, &backends.Statement{
				Text: "SELECT " + outputs(t.g.ToText("count(*)")) + " FROM (" + t.g.SelectFirst("1 AS one", t.name, strings.Join(where, " AND "), "", fmt.Sprint(backends.StatsExact+1)) + ") x",
				Row:  func(cells [][]byte) error { return number(cells[0], n) },
			})
		}
	}
	for role, of := range map[Role]struct {
		state backends.State
		age   *time.Duration
	}{CreatedAt: {backends.StateReady, &st.OldestReady}, ClaimedAt: {backends.StateClaimed, &st.OldestClaimed}} {
		c, has := t.one[role]
		if !has {
			continue
		}
		asks = append(asks, &backends.Statement{
			Text: t.g.SelectFirst(outputs(t.g.ToText(t.g.NowMillis()+" - "+t.millis(c))), t.name, strings.Join(t.in(of.state), " AND "), t.g.Name(c.Name), "1"),
			Row: func(cells [][]byte) error {
				var ms int64
				err := number(cells[0], &ms)
				*of.age = max(batch.FromMS(ms), time.Millisecond)
				return err
			},
		})
	}
	if err := s.Query(ctx, asks...); err != nil {
		return err
	}
	return s.counts.Fill(st, func(state backends.State) (n int64, err error) {
		err = s.Query(ctx, &backends.Statement{
			Text: "SELECT " + outputs(t.g.ToText("count(*)")) + " FROM " + t.name + " WHERE " + strings.Join(t.in(state), " AND "),
			Row:  func(cells [][]byte) error { return number(cells[0], &n) },
		})
		return n, err
	})
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) (queues []string, err error) {
	var managed []backends.Lease
	var ids []string
	for _, l := range leases {
		if id, ok := handled(l.Job); ok {
			ids = append(ids, strconv.FormatInt(id, 10))
		} else {
			managed = append(managed, l)
		}
	}
	if l, ok := s.Adopter.(backends.Locator); ok && len(managed) > 0 {
		if queues, err = l.Queues(ctx, managed); err != nil {
			return nil, err
		}
	}
	adopted, err := batch.Queues(ctx, s, leasesTable, idColumn.Type, ids)
	return append(queues, adopted...), err
}
