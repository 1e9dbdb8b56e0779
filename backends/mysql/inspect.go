package mysql

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// Stats implements core.Reader.
func (t *tx) Stats(ctx context.Context, queues []string) (all []backends.QueueStats, err error) {
	alone := func(string) bool { return true }
	if queues == nil {
		if all, alone, err = t.statsOfAll(ctx); err != nil {
			return nil, err
		}
	}
	for _, q := range queues {
		all = append(all, backends.QueueStats{Queue: q})
	}
	for i := range all {
		if alone(all[i].Queue) {
			t.statsOf(all[i].Queue, &all[i])
			t.makeRoom(1 << 20)
		}
	}
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for i := range all {
		if alone(all[i].Queue) {
			if err := t.oldest(ctx, &all[i]); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// statsOfAll counts all queues together, so that a queue with few jobs costs next to nothing. Queues for
// which alone returns true are incomplete, and statsOf must count them.
func (t *tx) statsOfAll(ctx context.Context) (all []backends.QueueStats, alone func(queue string) bool, err error) {
	var tally core.Tally
	t.Each(func(r *session.Result) { tally.Of(r.Text(0)).Paused = true }, t.s.sql.queuesPaused)
	t.Each(func(r *session.Result) {
		tally.Add(core.Counted{Queue: r.Text(0), State: backends.StateClaimed, N: r.Int(1), Oldest: age(r.Instant(3), r.Instant(2))})
	}, t.s.sql.queuesClaimed)
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDone, backends.StateDead} {
		sql := t.s.sql.queuesOthers
		if state == backends.StateReady {
			sql = t.s.sql.queuesReady
		}
		_, end := table.StateSegments(state)
		if err := tally.Count(func(after core.Counted, limit int64) (all []core.Counted, err error) {
			t.Each(func(r *session.Result) {
				c := core.Counted{Queue: r.Text(0)[1:], State: state, N: r.Int(1)}
				if state == backends.StateReady {
					c.Oldest = age(r.Instant(3), r.Instant(2))
				}
				all = append(all, c)
			}, sql, table.StateSegment(state, after.Queue), end, limit)
			err = t.Flush(ctx)
			return all, err
		}); err != nil {
			return nil, nil, err
		}
	}
	for _, letters := range [][2]string{{table.Unnoticed, table.Noticed}, {table.Noticed, table.AfterBlocked}} {
		if err := tally.Count(func(after core.Counted, limit int64) (all []core.Counted, err error) {
			from := letters[0]
			if after.Queue != "" {
				_, from = table.BlockedIn(from, after.Queue)
			}
			t.Each(func(r *session.Result) {
				all = append(all, core.Counted{Queue: r.Text(0), State: backends.StateBlocked, N: r.Int(1)})
			}, t.s.sql.queuesBlocked, from, letters[1], limit)
			err = t.Flush(ctx)
			return all, err
		}); err != nil {
			return nil, nil, err
		}
	}
	all, alone = tally.All()
	return all, alone, nil
}

// counting returns the query that counts the rows of a queue in a state, up to a limit.
func (s *statements) counting(state backends.State, queue string, limit int64) (sql string, args []any) {
	switch state {
	case backends.StateClaimed:
		return s.countClaimed, []any{queue, limit}
	case backends.StateBlocked:
		return s.countBlocked, []any{table.Blocked(queue), limit}
	}
	return s.countSegment, []any{table.StateSegment(state, queue), limit}
}

// Count implements core.Reader.
func (t *tx) Count(ctx context.Context, queue string, state backends.State) (n int64, err error) {
	sql, args := t.s.sql.counting(state, queue, math.MaxInt64)
	t.Int(&n, sql, args...)
	err = t.Flush(ctx)
	return n, err
}

// statsOf queues one statement with everything about one queue.
func (t *tx) statsOf(queue string, st *backends.QueueStats) {
	st.Queue = queue
	n := core.Counts(st)
	states := []backends.State{backends.StateReady, backends.StateScheduled, backends.StateClaimed, backends.StateDone, backends.StateDead}
	const limit = backends.StatsExact + 1
	in := func(state backends.State) string { return table.StateSegment(state, queue) }
	t.Each(func(r *session.Result) {
		for i, state := range states {
			*n[state] = r.Int(i)
		}
		st.Paused = r.Int(5) != 0
		st.OldestClaimed = age(r.Instant(7), r.Instant(6))
		st.Blocked = r.Int(8)
	}, t.s.sql.stats, in(backends.StateReady), limit, in(backends.StateScheduled), limit, queue, limit, in(backends.StateDone), limit, in(backends.StateDead), limit, queue, queue, table.Blocked(queue), limit)
}

// oldest reads the first row of each priority. Within a priority, positions are given in the order in
// which rows become ready.
func (t *tx) oldest(ctx context.Context, st *backends.QueueStats) error {
	if st.Ready == 0 {
		return nil
	}
	for urgency, more := int64(math.MinInt32), true; more; {
		more = false
		t.Each(func(r *session.Result) {
			urgency, more = r.Int(0), true
			st.OldestReady = max(st.OldestReady, age(r.Instant(2), r.Instant(1)))
		}, t.s.sql.oldestReady, "r"+st.Queue, urgency)
		if err := t.Flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// age returns how long ago `at` was. It returns at least a millisecond, because 0 means that there is no
// such job.
func age(now, at session.Instant) time.Duration {
	if at == 0 {
		return 0
	}
	return max(time.Duration(now-at)*time.Microsecond, time.Millisecond)
}

// listPlace is the position in the index of the job after which a list continues. Of a claimed job it has only
// claimed and id.
type listPlace struct {
	urgency int32
	sortKey *int64 // nil: NULL, which comes first
	claimed session.Instant
	group   string // of a blocked job: what follows the letter of its `segment`
	id      int64
}

var listStart = listPlace{urgency: cursor.Beginning.Urgency, claimed: 1}

// following returns the condition that a row of a `segment` comes after p.
func (l listPlace) following() session.Part {
	rest := fmt.Sprintf("sort_key IS NULL AND id > %d OR urgency = %d AND sort_key IS NOT NULL", l.id, l.urgency)
	if l.sortKey != nil {
		rest = fmt.Sprintf("sort_key = %d AND id > %d OR urgency = %d AND sort_key > %[1]d", *l.sortKey, l.id, l.urgency)
	}
	return session.Part{SQL: fmt.Sprintf("(urgency = %d AND %s OR urgency > %[1]d)", l.urgency, rest)}
}

// preceding returns the condition that a row of a `segment` without urgencies comes before p, or TRUE at the start.
func (l listPlace) preceding() session.Part {
	if l.sortKey == nil {
		return session.Part{SQL: "urgency = 0"}
	}
	return session.Part{SQL: fmt.Sprintf("urgency = 0 AND (sort_key = %d AND id < %d OR sort_key < %[1]d)", *l.sortKey, l.id)}
}

// Place implements core.Reader. The job can be in another state than p.State by now.
func (t *tx) Place(ctx context.Context, p backends.Peek, id int64) (place any, found bool, err error) {
	from, sql := listStart, t.s.sql.placeClaimed
	switch p.State {
	case backends.StateReady:
		sql = t.s.sql.placeReady
	case backends.StateBlocked:
		t.Each(func(r *session.Result) {
			found, from = true, listPlace{group: table.GroupSegment(p.Queue, r.Text(2)), urgency: int32(r.Int(0)), sortKey: r.Optional(1), id: id}
		}, t.s.sql.placeBlocked, id, p.Queue)
		err = t.Flush(ctx)
		return from, found, err
	case backends.StateScheduled:
		sql = t.s.sql.placeScheduled
	case backends.StateDone, backends.StateDead:
		sql = t.s.sql.placeFinished
	}
	t.Each(func(r *session.Result) {
		found, from = true, listPlace{urgency: int32(r.Int(0)), sortKey: r.Optional(1), claimed: max(r.Instant(2), 1), id: id}
	}, sql, id, p.Queue)
	err = t.Flush(ctx)
	return from, found, err
}

// Sizes implements core.Reader.
func (t *tx) Sizes(ctx context.Context, p backends.Peek, ids []int64, after any, each func(id, bytes int64)) error {
	from, ok := after.(listPlace)
	if !ok {
		from = listStart
	}
	read := func(r *session.Result) { each(r.Int(0), r.Int(1)) }
	switch {
	case ids != nil:
		bytes := map[int64]int64{}
		t.Each(func(r *session.Result) { bytes[r.Int(0)] = r.Int(1) }, t.s.sql.chosen, session.IDs(ids), p.Queue)
		err := t.Flush(ctx)
		for _, id := range ids {
			if n, ok := bytes[id]; ok {
				each(id, n)
			}
		}
		return err
	case p.State == backends.StateClaimed: // one `segment` for each sidecar; there are never many claimed jobs
		t.Each(read, t.s.sql.peekClaimed, p.Queue, from.claimed, from.claimed, from.id, p.Max)
	case p.State == backends.StateBlocked:
		t.blocked(p.Queue, from, int64(p.Max), read)
	case p.Newest:
		t.Each(read, t.s.sql.peekNewest, table.StateSegment(p.State, p.Queue), from.preceding(), p.Max)
	default:
		t.Each(read, t.s.sql.peek, table.StateSegment(p.State, p.Queue), from.following(), p.Max)
	}
	return t.Flush(ctx)
}

// blocked queues the query for at most limit blocked jobs of a queue after a position.
func (t *tx) blocked(queue string, after listPlace, limit int64, f func(r *session.Result)) {
	following := after.following().SQL
	t.Each(f, t.s.sql.blocked, table.BlockedAfter(table.Unnoticed, queue, after.group, following), limit,
		table.BlockedAfter(table.Noticed, queue, after.group, following), limit, limit)
}

// KeyHolder implements core.Reader.
func (t *tx) KeyHolder(ctx context.Context, queue, key string) (id int64, found bool, err error) {
	t.Each(func(r *session.Result) { id, found = r.Int(0), true }, t.s.sql.keyHolder, queue, []byte(key))
	err = t.Flush(ctx)
	return id, found, err
}

// Views implements core.Reader.
func (t *tx) Views(ctx context.Context, queue string, ids []int64) (views []backends.View, err error) {
	order := map[int64]int{}
	for i, id := range ids {
		order[id] = i
	}
	t.Each(func(r *session.Result) { views = append(views, readView(r)) }, t.s.sql.view, session.IDs(ids), queue)
	failures := map[string][]backends.Failure{}
	t.Each(func(r *session.Result) {
		id := core.ID(r.Int(0))
		failures[id] = append(failures[id], backends.Failure{Attempt: int(r.Int(1)), Cause: backends.Cause(r.Text(2)), Message: r.Text(3), At: r.Instant(4).Time()})
	}, t.s.sql.failures, session.IDs(ids))
	if err := t.Flush(ctx); err != nil {
		return nil, err
	}
	for i := range views {
		views[i].Failures = failures[views[i].ID]
	}
	slices.SortFunc(views, func(a, b backends.View) int {
		x, _ := core.Number(a.ID)
		y, _ := core.Number(b.ID)
		return cmp.Compare(order[x], order[y])
	})
	return views, nil
}

func readView(r *session.Result) (v backends.View) {
	v = backends.View{
		ID: core.ID(r.Int(0)), Queue: r.Text(1), State: backends.State(r.Text(2)), Payload: r.Bytes(3), Priority: int16(r.Int(4)),
		Attempt: int(r.Int(5)), MaxAttempts: int(r.Int(6)), EnqueuedAt: r.Instant(7).Time(), FinishedAt: r.Instant(10).Time(),
		Key: r.Text(12), Result: r.Bytes(14), Group: r.Text(15), HasProgress: !r.Null(16),
	}
	switch v.State {
	case backends.StateScheduled:
		v.RunAt = r.Instant(8).Time()
	case backends.StateClaimed:
		v.ClaimedAt, v.Worker = r.Instant(9).Time(), r.Text(11)
	}
	if !r.Null(17) {
		v.StartBefore = r.Instant(17).Time()
	}
	v.Headers = core.ReadHeaders(r.Text(13))
	return v
}

// ClaimedBy implements core.Reader.
func (t *tx) ClaimedBy(ctx context.Context, owner backends.Identity, after int64, limit int) (all []backends.ClaimedJob, err error) {
	t.Each(func(r *session.Result) {
		all = append(all, backends.ClaimedJob{
			Lease: backends.Lease{Job: core.ID(r.Int(0)), Token: backends.Token{Sidecar: backends.Identity(r.Int(1)), Number: uint64(r.Int(2))}},
			Queue: r.Text(3),
			Timed: r.Int(4) != 0,
		})
	}, t.s.sql.claimedBy, table.OwnerSegment(int64(owner)), after, limit)
	err = t.Flush(ctx)
	return all, err
}

// Hours implements core.Reader.
func (t *tx) Hours(ctx context.Context, queue string) (all []backends.HourTotals, err error) {
	t.Each(func(r *session.Result) { all = append(all, core.HourOf(r.Text(1), r.Int)) }, t.s.sql.hours, queue, queue)
	err = t.Flush(ctx)
	return all, err
}

// Cancelled implements core.Reader.
func (t *tx) Cancelled(ctx context.Context, owner backends.Identity) (claims []backends.Token, err error) {
	t.Each(func(r *session.Result) {
		claims = append(claims, backends.Token{Sidecar: backends.Identity(r.Int(0)), Number: uint64(r.Int(1))})
	}, t.s.sql.cancelled, int64(owner))
	err = t.Flush(ctx)
	return claims, err
}
