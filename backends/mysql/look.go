package mysql

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// dueDetails are the details of a core.Due that the Maintainer's methods use (core.Due.Details).
type dueDetails struct {
	arrived   bool     // there are plain INSERTs with a run_at
	scheduled []string // queues with jobs that are due, the longest due first
	due       []string // values of `lane` of claimed jobs that are due: their lease or time limit is over
	dead      []int64  // dead sidecars
}

// Look implements core.Driver. It searches for claims of owners that were not alive at the previous scan.
// If other sidecars are alive now, it scans again.
func (d access) Look(ctx context.Context, q core.Question) (o core.Due, err error) {
	s := d.Store
	for range 4 {
		s.alive.mu.Lock()
		alive := s.alive.hosts
		s.alive.mu.Unlock()
		seen := sight{returns: map[string]int64{}}
		if err := s.readOnce(ctx, func(_ context.Context, t *tx) error {
			t.look(q, alive, &seen)
			return nil
		}); err != nil {
			return o, err
		}
		s.alive.mu.Lock()
		s.alive.hosts = seen.alive
		s.alive.mu.Unlock()
		if o = seen.answer(q); slices.Equal(alive, seen.alive) {
			break
		}
	}
	return o, nil
}

// aliveHosts caches the sidecars that were alive at the previous scan.
type aliveHosts struct {
	mu    sync.Mutex
	hosts []int64
}

// sight collects the rows that tx.look returns.
type sight struct {
	now            int64
	arrived        bool
	scheduled, due []placed
	alive, dead    []int64
	owner          *int64
	expired, keys  *instant
	never          int64
	ready          []string
	returns        map[string]int64
}

type placed struct {
	lane string
	at   int64
}

func (x *sight) read(r *result) error {
	name, n := r.text(1), r.int(2)
	switch r.text(0) {
	case "now":
		x.now = n
	case "arrived":
		x.arrived = true
	case "scheduled":
		x.scheduled = append(x.scheduled, placed{name, n})
	case "due":
		x.due = append(x.due, placed{name, n})
	case "alive":
		x.alive = append(x.alive, n)
	case "dead":
		x.dead = append(x.dead, n)
	case "owner":
		u, err := strconv.ParseUint(strings.TrimPrefix(name, "c"), 16, 64)
		if err != nil {
			return fmt.Errorf("%w: the lane %q names no owner: %w", errOwn, name, err)
		}
		owner := int64(u)
		x.owner = &owner
	case "never":
		x.never = n
	case "expired":
		x.expired = (*instant)(&n)
	case "keys":
		x.keys = (*instant)(&n)
	case "ready":
		x.ready = append(x.ready, name)
	case "returns":
		x.returns[name] = n
	}
	return nil
}

// answer converts the rows to a core.Due.
func (x *sight) answer(q core.Question) (o core.Due) {
	now := instant(x.now)
	o = core.Due{At: now.time(), Promote: x.arrived, Dead: len(x.dead) > 0, Never: x.never, Ready: make([]bool, len(q.Waiting)), Returns: make([]int64, len(q.Waiting))}
	times := func(at *instant) *time.Time {
		if at == nil {
			return nil
		}
		when := at.time()
		return &when
	}
	o.Jobs, o.Keys = times(x.expired), times(x.keys)
	// due returns each `lane` whose first job is due, and the time of the first job of all.
	due := func(all []placed) (lanes []string, first *time.Time) {
		slices.SortFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
		for _, p := range all {
			if p.at == int64(forever) {
				continue
			}
			if p.at <= x.now {
				lanes = append(lanes, p.lane)
			}
			if at := instant(p.at); first == nil {
				first = times(&at)
			}
		}
		return lanes, first
	}
	details := dueDetails{arrived: x.arrived, dead: x.dead}
	details.scheduled, o.RunAt = due(x.scheduled)
	details.due, o.DueAt = due(x.due)
	if x.owner != nil && *x.owner != 0 && !slices.Contains(x.alive, *x.owner) {
		o.Lost, o.MoreLost = []int64{*x.owner}, true
	}
	for i, queue := range q.Waiting {
		o.Ready[i], o.Returns[i] = slices.Contains(x.ready, queue), x.returns[queue]
	}
	o.Details = details
	return o
}

// hostLane is the expression for the `lane` of a sidecar's claims.
const hostLane = `CONVERT(CONCAT('c', LPAD(HEX(h.host), 16, '0')) USING ascii) COLLATE ascii_bin`

// look queues the statement of a scan. It holds everything that an idle sidecar queries in a second.
func (t *tx) look(q core.Question, alive []int64, x *sight) {
	s := t.s
	t.each(x.read, "SELECT 'now' AS kind, '' AS name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "+s.sql.clock+") AS n")
	part := func(sql string, args ...any) { t.text("\nUNION ALL "+sql, args...) }
	part("SELECT 'arrived', '', 1 FROM (SELECT 1 FROM " + jobs + " WHERE lane = 'n' LIMIT 1) AS x")
	part("SELECT 'scheduled', x.queue, x.place FROM (SELECT q.queue, (SELECT j.place FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_lanes) " +
		"WHERE j.lane = CONCAT('s', q.queue) AND j.urgency = 0 AND j.place IS NOT NULL ORDER BY j.lane, j.urgency, j.place, j.id LIMIT 1) AS place FROM qsidecar_queues AS q) AS x WHERE x.place IS NOT NULL")
	part("SELECT 'due', x.lane, x.place FROM (SELECT " + hostLane + " AS lane, (SELECT j.place FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_lanes) " +
		"WHERE j.lane = " + hostLane + " ORDER BY j.lane, j.urgency, j.place, j.id LIMIT 1) AS place " +
		"FROM (SELECT host FROM qsidecar_hosts UNION ALL SELECT 0) AS h) AS x WHERE x.place IS NOT NULL")
	part("SELECT IF(dead, 'dead', 'alive'), '', host FROM qsidecar_hosts")
	if q.Owners {
		part("SELECT 'owner', x.lane, 0 FROM (SELECT lane FROM " + jobs + " WHERE " + strangers(alive) + " ORDER BY lane LIMIT 1) AS x")
	}
	if q.Prune {
		// `place` is NULL for a date that does not exist, which a session that is not strict can store.
		part("SELECT 'never', '', x.id FROM (SELECT (SELECT j.id FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_lanes) " +
			"WHERE j.lane = CONCAT('s', q.queue) AND j.urgency = 0 AND j.place IS NULL LIMIT 1) AS id FROM qsidecar_queues AS q) AS x WHERE x.id IS NOT NULL")
		first := func(what, column, table string, from time.Time) {
			part("SELECT ?, '', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', x.at) FROM (SELECT "+column+" AS at FROM "+table+" WHERE "+column+" >= ? AND "+column+" <= "+
				s.sql.clock+" ORDER BY "+column+" LIMIT 1) AS x", what, since(from))
		}
		first("expired", "expires_at", "qsidecar_expiring", q.JobsFrom)
		first("keys", "over_at", "qsidecar_keys FORCE INDEX (qsidecar_keys_over)", q.KeysFrom)
	}
	if len(q.Waiting) == 0 {
		return
	}
	segments := make([][]cursor.Segment, len(q.Waiting))
	for _, p := range q.Pieces {
		segments[p.Queue] = append(segments[p.Queue], p.Segment)
	}
	var names []any
	for i, queue := range q.Waiting {
		part("SELECT 'ready', ?, 1 FROM (SELECT 1 FROM "+jobs+" WHERE "+laneRange+" AND "+within(segments[i])+" LIMIT 1) AS x", queue, "r"+queue, "r"+queue)
		names = append(names, queue)
	}
	part("SELECT 'returns', queue, returns FROM qsidecar_queues WHERE queue IN ("+marks(len(names))+")", names...)
}

// strangers returns the condition that a `lane` holds claims of an owner that is not one of the hosts.
// It consists of the gaps between the values of `lane` of the hosts.
func strangers(hosts []int64) string {
	lanes := []string{ownerLane(0)}
	for _, h := range hosts {
		lanes = append(lanes, ownerLane(h))
	}
	slices.Sort(lanes)
	from, ors := "c", []string(nil)
	for _, lane := range slices.Compact(lanes) {
		ors = append(ors, "lane > '"+from+"' AND lane < '"+lane+"'")
		from = lane
	}
	return "(" + strings.Join(append(ors, "lane > '"+from+"' AND lane < 'd'"), " OR ") + ")"
}
