package mysql

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// dueDetails are the details of a core.Due that the Maintainer's methods use (core.Due.Details).
type dueDetails struct {
	arrived   bool     // there are plain INSERTs with a run_at
	scheduled []string // queues with jobs that are due, the longest due first
	due       []string // values of `segment` of claimed jobs that are due: their lease or time limit is over
	dead      []int64  // dead sidecars
}

// FindDue implements core.Driver. It searches for claims of owners that were not alive at the previous scan.
// If other sidecars are alive now, it scans again.
func (d access) FindDue(ctx context.Context, q core.DueQuery) (o core.Due, err error) {
	var alive []int64
	if p := d.alive.Load(); p != nil {
		alive = *p
	}
	for range 4 {
		x := newDueRows(q)
		if err := d.readOnce(ctx, func(_ context.Context, t *tx) error {
			t.queryDue(q, slices.Concat(alive, q.Refused), x)
			return nil
		}); err != nil {
			return o, err
		}
		if o = x.result(); q.Watched || slices.Equal(alive, x.alive) {
			break
		}
		d.alive.Store(&x.alive)
		alive = x.alive
	}
	return o, nil
}

// dueRows collects the rows that tx.queryDue returns.
type dueRows struct {
	core.Due
	details        dueDetails
	waiting        map[string]int // the index of each queue in DueQuery.Waiting
	now            int64
	scheduled, due []segmentStart
	alive          []int64
}

// segmentStart is the first job of a `segment`, or of a queue.
type segmentStart struct {
	segment string
	sortKey int64
}

func newDueRows(q core.DueQuery) *dueRows {
	x := &dueRows{waiting: make(map[string]int, len(q.Waiting)), Due: core.Due{Ready: make([]bool, len(q.Waiting)), Returns: make([]int64, len(q.Waiting))}}
	for i, queue := range q.Waiting {
		x.waiting[queue] = i
	}
	return x
}

func (x *dueRows) read(r *session.Result) {
	name, n := r.Text(1), r.Int(2)
	switch r.Text(0) {
	case "now":
		x.now, x.At = n, *timeOf(n)
	case "arrived":
		x.Promote, x.details.arrived = true, true
	case "scheduled":
		x.scheduled = append(x.scheduled, segmentStart{name, n})
	case "due":
		x.due = append(x.due, segmentStart{name, n})
	case "alive":
		x.alive = append(x.alive, n)
	case "dead":
		x.Dead, x.details.dead = true, append(x.details.dead, n)
	case "owner":
		x.Lost = []int64{n}
	case "never":
		x.Never = n
	case "expired":
		x.Jobs = timeOf(n)
	case "keys":
		x.Keys = timeOf(n)
	case "ready", "requeues":
		switch i, ok := x.waiting[name]; {
		case !ok:
		case r.Text(0) == "ready":
			x.Ready[i] = true
		default:
			x.Returns[i] = n
		}
	}
}

// result converts the rows to a core.Due.
func (x *dueRows) result() core.Due {
	x.details.scheduled, x.RunAt = x.overdue(x.scheduled)
	x.details.due, x.DueAt = x.overdue(x.due)
	x.Lost = slices.DeleteFunc(x.Lost, func(owner int64) bool { return owner == 0 || slices.Contains(x.alive, owner) })
	x.MoreLost, x.Details = len(x.Lost) > 0, x.details
	return x.Due
}

// overdue returns each `segment` whose first job is due, and the time of the first job of all.
func (x *dueRows) overdue(all []segmentStart) (segments []string, first *time.Time) {
	slices.SortFunc(all, func(a, b segmentStart) int { return cmp.Compare(a.sortKey, b.sortKey) })
	for _, p := range all {
		if p.sortKey == int64(forever) {
			continue
		}
		if p.sortKey <= x.now {
			segments = append(segments, p.segment)
		}
		if first == nil {
			first = timeOf(p.sortKey)
		}
	}
	return segments, first
}

func timeOf(micros int64) *time.Time {
	t := session.Instant(micros).Time()
	return &t
}

// ownerSegment is the expression for the `segment` of a sidecar's claims.
const ownerSegment = `CONVERT(CONCAT('c', LPAD(HEX(h.sidecar), 16, '0')) USING ascii) COLLATE ascii_bin`

// queryDue queues the statement of a scan. It holds everything that an idle sidecar queries in a second.
func (t *tx) queryDue(q core.DueQuery, alive []int64, x *dueRows) {
	s := t.s
	t.Each(x.read, "SELECT 'now' AS kind, '' AS name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "+s.sql.clock+") AS n")
	part := func(sql string, args ...any) { t.Text("\nUNION ALL "+sql, args...) }
	part("SELECT 'arrived', '', 1 FROM (SELECT 1 FROM " + table.Jobs + " WHERE segment = 'n' LIMIT 1) AS x")
	names := []any{""} // no queue's name, so that the list is never empty
	for _, queue := range q.Waiting {
		names = append(names, queue)
	}
	among := "queue IN (" + session.Marks(len(names)) + ")"
	if !q.Watched {
		part("SELECT IF(dead, 'dead', 'alive'), '', sidecar FROM qsidecar_sidecars")
	}
	t.queryFirstDue(q, among, names, part)
	if q.Owners {
		part("SELECT 'owner', '', x.owner FROM (SELECT " + table.NoPushdown + "owner FROM " + table.Jobs + " WHERE " + otherOwners(alive) + " ORDER BY segment LIMIT 1) AS x")
	}
	if q.Prune {
		// `sort_key` is NULL for a date that does not exist, which a session that is not strict can store.
		part("SELECT 'never', '', x.id FROM (SELECT (SELECT j.id FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_segments) " +
			"WHERE j.segment = CONCAT('s', q.queue) AND j.urgency = 0 AND j.sort_key IS NULL LIMIT 1) AS id FROM qsidecar_queues AS q) AS x WHERE x.id IS NOT NULL")
		first := func(what, column, table string, from time.Time) {
			part("SELECT ?, '', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', x.at) FROM (SELECT "+column+" AS at FROM "+table+" WHERE "+column+" >= ? AND "+column+" <= "+
				s.sql.clock+" ORDER BY "+column+" LIMIT 1) AS x", what, since(from))
		}
		first("expired", "expires_at", "qsidecar_expiring", q.JobsFrom)
		first("keys", "prune_at", "qsidecar_keys FORCE INDEX (qsidecar_keys_expiring)", q.KeysFrom)
	}
	if len(q.Waiting) == 0 {
		return
	}
	segments := make([][]cursor.Segment, len(q.Waiting))
	for _, p := range q.Pieces {
		segments[p.Queue] = append(segments[p.Queue], p.Segment)
	}
	for i, queue := range q.Waiting {
		part("(SELECT "+table.NoPushdown+"'ready', ?, 1 FROM "+table.Jobs+" WHERE "+table.SegmentRange+" AND "+table.Within(segments[i])+" LIMIT 1)", queue, "r"+queue, "r"+queue)
	}
	part("SELECT 'requeues', queue, requeues FROM qsidecar_queues WHERE "+among, names...)
}

// mostParts is for how many queues queryFirstDue has a SELECT each. The server needs some 70 µs to plan one.
const mostParts = 16

// queryFirstDue adds the parts for the jobs and claims that are due first. A search of all queues and sidecars reads some rows
// for each of them. It also passes all index entries of jobs that are gone and can't be purged yet, because the server doesn't use
// DueFrom for a condition on another table's row. A watched sidecar searches only its own claims and waiting queues, and from
// DueFrom on.
func (t *tx) queryFirstDue(q core.DueQuery, among string, names []any, part func(sql string, args ...any)) {
	from := "IS NOT NULL"
	if !q.DueFrom.IsZero() {
		from = ">= " + strconv.FormatInt(q.DueFrom.UnixMicro(), 10)
	}
	one := func(kind, name, segment string) {
		part("(SELECT "+table.NoPushdown+"'"+kind+"', ?, sort_key FROM "+table.Jobs+" WHERE "+table.SegmentRange+
			" AND urgency = 0 AND sort_key "+from+" ORDER BY "+table.SegmentOrder+" LIMIT 1)", name, segment, segment)
	}
	each := func(kind, name, segment, of string, args ...any) {
		part("SELECT '"+kind+"', x.name, x.sort_key FROM (SELECT "+name+" AS name, (SELECT j.sort_key FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_segments) "+
			"WHERE j.segment = "+segment+" AND j.urgency = 0 AND j.sort_key "+from+" ORDER BY j.segment, j.urgency, j.sort_key, j.id LIMIT 1) AS sort_key "+
			"FROM "+of+") AS x WHERE x.sort_key IS NOT NULL", args...)
	}
	const scheduled = "CONCAT('s', qsidecar_queues.queue)"
	if !q.Watched {
		each("scheduled", "qsidecar_queues.queue", scheduled, "qsidecar_queues")
		each("due", ownerSegment, ownerSegment, "(SELECT sidecar FROM qsidecar_sidecars UNION ALL SELECT 0) AS h")
		return
	}
	if len(q.Waiting) > mostParts {
		each("scheduled", "qsidecar_queues.queue", scheduled, "qsidecar_queues WHERE "+among, names...)
	} else {
		for _, queue := range q.Waiting {
			one("scheduled", queue, "s"+queue)
		}
	}
	for _, owner := range slices.Compact([]int64{int64(q.Host), 0}) {
		one("due", table.OwnerSegment(owner), table.OwnerSegment(owner))
	}
}

// otherOwners returns the condition that a `segment` holds claims of an owner that is not one of the hosts.
// It consists of the gaps between the values of `segment` of the hosts.
func otherOwners(hosts []int64) string {
	segments := []string{table.OwnerSegment(0)}
	for _, h := range hosts {
		segments = append(segments, table.OwnerSegment(h))
	}
	slices.Sort(segments)
	from, ors := "c", []string(nil)
	for _, segment := range slices.Compact(segments) {
		ors = append(ors, "segment > '"+from+"' AND segment < '"+segment+"'")
		from = segment
	}
	return "(" + strings.Join(append(ors, "segment > '"+from+"' AND segment < 'd'"), " OR ") + ")"
}
