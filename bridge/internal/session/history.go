package session

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/history"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// history returns what the sidecar recorded about a queue, and the hours in the database. Without a queue it returns the
// last hour of every queue, and all of the sum of them.
func (s *Session) history(req *protocol.Request) finisher {
	queue, p := req.Queue, s.shared.Plan()
	if queue != "" {
		if _, wire := p.DatabaseOfQueue(queue); wire != nil {
			return fail(wire)
		}
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		ctx, done := s.beginInspection(protocol.OpHistory)
		if ctx.Err() != nil {
			return s.failure(ErrDraining), done
		}
		all, err := s.historyOf(ctx, p, queue)
		if err != nil {
			return s.failure(err), done
		}
		reply := &protocol.Reply{History: all}
		s.replyLimit().FitReport(reply)
		return reply, done
	})}
}

func (s *Session) historyOf(ctx context.Context, p *plan.Plan, queue string) ([]protocol.QueueHistory, error) {
	if queue != "" {
		db, wire := p.DatabaseOfQueue(queue)
		if wire != nil {
			return nil, wire
		}
		since, points := db.History().LastHour(queue)
		one := protocol.QueueHistory{Queue: queue, Since: since.UnixMilli(), Minutes: minutesOf(points)}
		if hours, err := db.Hours(ctx, queue); err == nil {
			one.Hours = hoursOf(hours)
		}
		return []protocol.QueueHistory{one}, nil
	}
	g := s.granted()
	sum, all := map[int64]*backends.Totals{}, []protocol.QueueHistory{}
	var hours []backends.HourTotals
	unread := false
	first := time.Now()
	for _, db := range p.Databases {
		if !db.Served {
			continue
		}
		for _, name := range db.History().Queues() {
			since, points := db.History().LastHour(name)
			if since.Before(first) {
				first = since
			}
			addMinutes(sum, points)
			if name != history.Other && g.Queue(protocol.OpHistory, name) && p.IsIn(name, db) {
				all = append(all, protocol.QueueHistory{Queue: name, Since: since.UnixMilli(), Minutes: minutesOf(points)})
			}
		}
		if !g.Everywhere(protocol.OpHistory) && !g.All {
			continue
		}
		rows, err := db.Hours(ctx, "")
		hours, unread = append(hours, rows...), unread || err != nil
	}
	slices.SortFunc(all, func(a, b protocol.QueueHistory) int { return cmp.Compare(a.Queue, b.Queue) })
	if !g.Everywhere(protocol.OpHistory) && !g.All {
		return all, nil
	}
	total := protocol.QueueHistory{Since: first.UnixMilli(), Minutes: []protocol.HistoryPoint{}}
	if !unread {
		total.Hours = hoursOf(hours)
	}
	for _, at := range slices.Sorted(maps.Keys(sum)) {
		total.Minutes = append(total.Minutes, wirejob.FromTotals(at*1000, sum[at]))
	}
	return slices.Insert(all, 0, total), nil
}

// addMinutes adds the points of a queue to the sum of all by the seconds of their times.
func addMinutes(sum map[int64]*backends.Totals, points []history.Point) {
	for i := range points {
		at := points[i].At.Unix()
		if sum[at] == nil {
			none := backends.NoTotals()
			sum[at] = &none
		}
		addQueue(sum[at], &points[i].Totals)
	}
}

// addQueue adds the totals of another queue in the same time: unlike those of other times, its ready jobs count too.
func addQueue(to, t *backends.Totals) {
	ready := max(to.Ready, 0) + max(t.Ready, 0)
	known := to.Ready >= 0 || t.Ready >= 0
	to.Add(t)
	if known {
		to.Ready = ready
	}
}

func minutesOf(points []history.Point) []protocol.HistoryPoint {
	all := make([]protocol.HistoryPoint, len(points))
	for i := range points {
		all[i] = wirejob.FromTotals(points[i].At.UnixMilli(), &points[i].Totals)
	}
	return all
}

// hoursOf returns the sums of rows by hour.
func hoursOf(rows []backends.HourTotals) []protocol.HistoryPoint {
	sum := map[int64]*backends.Totals{}
	for i := range rows {
		if t := sum[rows[i].Hour]; t != nil {
			addQueue(t, &rows[i].Totals)
		} else {
			one := rows[i].Totals
			sum[rows[i].Hour] = &one
		}
	}
	all := []protocol.HistoryPoint{}
	for _, hour := range slices.Sorted(maps.Keys(sum)) {
		all = append(all, wirejob.FromTotals(hour*3600_000, sum[hour]))
	}
	return all
}
