package mysql

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// outlook is what a look without writing found to do, and what it saw.
type outlook struct {
	arrived       bool     // plain INSERTs with a run_at
	scheduled     []string // queues with jobs that are due, the longest due first
	due           []string // lanes of claims that are
	lost          *int64   // an owner of claimed rows who is dead or unknown
	dead          []int64  // dead hosts
	expired, keys *instant // since when the first of them is over; nil: there is none
	ready         []string
	next          time.Duration
	at            instant // of the look
	never         int64   // a scheduled job that never becomes due; 0: there is none
}

// owners are the hosts that were alive at the last look: claims of others are what
// a look searches for.
type owners struct {
	mu    sync.Mutex
	alive []int64
	next  time.Time // of the search, where it is slow
}

// slowLook is how long a look may take that searches for claims of unknown owners.
// It is short, unless an old snapshot keeps the entries of claims that are gone:
// then the search is made every ownersEvery only, and at once where a host is
// known to be dead.
const (
	slowLook    = 50 * time.Millisecond
	ownersEvery = 5 * time.Second
)

func (s *Store) lookAround(ctx context.Context, w backends.Maintenance) (o outlook, err error) {
	for range 4 {
		s.lanes.mu.Lock()
		alive, search := s.lanes.alive, !time.Now().Before(s.lanes.next)
		s.lanes.mu.Unlock()
		began := time.Now()
		from := [2]time.Time{s.trails.jobs.From(began), s.trails.keys.From(began)}
		var seen sight
		if err := s.read(ctx, func(_ context.Context, t *tx) error {
			seen = sight{returns: map[string]int64{}, from: from}
			s.queueLook(t, w, alive, search, &seen)
			return nil
		}); err != nil {
			return o, err
		}
		for _, q := range seen.whole {
			if !slices.Contains(seen.ready, q) {
				s.cursors.LookedAtWhole(q, began, time.Since(began))
			}
		}
		if w.Prune {
			s.trails.jobs.Looked(from[0], began, time.Since(began))
			s.trails.keys.Looked(from[1], began, time.Since(began))
		}
		s.lanes.mu.Lock()
		s.lanes.alive = seen.alive
		if took := time.Since(began); search && took > slowLook {
			s.lanes.next = began.Add(ownersEvery)
		}
		if len(seen.dead) > 0 && !search {
			s.lanes.next = time.Time{}
		}
		s.lanes.mu.Unlock()
		o = seen.outlook(s, w)
		if !slices.Equal(alive, seen.alive) || len(seen.dead) > 0 && !search {
			continue // the search was for others than it should be; or now there is a reason for one
		}
		break
	}
	return o, nil
}

// sight is the answer to a look.
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
	whole          []string     // queues that were looked at from the beginning on
	from           [2]time.Time // where pruning looks from: of jobs, of keys
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

func (x *sight) outlook(s *Store, w backends.Maintenance) (o outlook) {
	o = outlook{arrived: x.arrived, dead: x.dead, expired: x.expired, keys: x.keys, next: -1, at: instant(x.now), never: x.never}
	due := func(all []placed) (lanes []string) {
		slices.SortFunc(all, func(a, b placed) int { return int(min(max(a.at-b.at, -1), 1)) })
		for _, p := range all {
			if p.at == forEver.int() {
				continue
			}
			if p.at <= x.now {
				lanes = append(lanes, p.lane)
			}
			if d := time.Duration(min(max(p.at-x.now, 0), math.MaxInt64/1000)) * time.Microsecond; o.next < 0 || d < o.next {
				o.next = d
			}
		}
		return lanes
	}
	o.scheduled, o.due = due(x.scheduled), due(x.due)
	if x.owner != nil && *x.owner != 0 && !slices.Contains(x.alive, *x.owner) {
		o.lost = x.owner
	}
	for _, q := range w.Waiting {
		// Where jobs were given back behind the cursor, a claim has to look.
		if slices.Contains(x.ready, q) || s.cursors.Returned(q, x.returns[q]) {
			o.ready = append(o.ready, q)
		}
	}
	return o
}

func (t instant) int() int64 { return int64(t) }

// hostLane is the expression for the lane of a host's claims.
const hostLane = `CONVERT(CONCAT('c', LPAD(HEX(h.host), 16, '0')) USING ascii) COLLATE ascii_bin`

// queueLook queues the look: all that an idle sidecar asks in a second.
func (s *Store) queueLook(t *tx, w backends.Maintenance, alive []int64, search bool, x *sight) {
	t.each(x.read, "SELECT 'now' AS kind, '' AS name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "+s.sql.clock+") AS n")
	part := func(sql string, args ...any) { t.text("\nUNION ALL "+sql, args...) }
	part("SELECT 'arrived', '', 1 FROM (SELECT 1 FROM " + jobs + " WHERE lane = 'n' LIMIT 1) AS x")
	part("SELECT 'scheduled', x.queue, x.place FROM (SELECT q.queue, (SELECT j.place FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_lanes) " +
		"WHERE j.lane = CONCAT('s', q.queue) AND j.urgency = 0 AND j.place IS NOT NULL ORDER BY j.lane, j.urgency, j.place, j.id LIMIT 1) AS place FROM qsidecar_queues AS q) AS x WHERE x.place IS NOT NULL")
	part("SELECT 'due', x.lane, x.place FROM (SELECT " + hostLane + " AS lane, (SELECT j.place FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_lanes) " +
		"WHERE j.lane = " + hostLane + " ORDER BY j.lane, j.urgency, j.place, j.id LIMIT 1) AS place " +
		"FROM (SELECT host FROM qsidecar_hosts UNION ALL SELECT 0) AS h) AS x WHERE x.place IS NOT NULL")
	part("SELECT IF(dead, 'dead', 'alive'), '', host FROM qsidecar_hosts")
	if search {
		part("SELECT 'owner', x.lane, 0 FROM (SELECT lane FROM " + jobs + " WHERE " + strangers(alive) + " ORDER BY lane LIMIT 1) AS x")
	}
	if w.Prune {
		// A date that does not exist, which a session that is not strict can store, has no place.
		part("SELECT 'never', '', x.id FROM (SELECT (SELECT j.id FROM qsidecar_jobs AS j FORCE INDEX (qsidecar_lanes) " +
			"WHERE j.lane = CONCAT('s', q.queue) AND j.urgency = 0 AND j.place IS NULL LIMIT 1) AS id FROM qsidecar_queues AS q) AS x WHERE x.id IS NOT NULL")
		first := func(what, column, table string, from time.Time) {
			part("SELECT ?, '', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', x.at) FROM (SELECT "+column+" AS at FROM "+table+" WHERE "+column+" >= ? AND "+column+" <= "+
				s.sql.clock+" ORDER BY "+column+" LIMIT 1) AS x", what, since(from))
		}
		first("expired", "expires_at", "qsidecar_expiring", x.from[0])
		first("keys", "over_at", "qsidecar_keys FORCE INDEX (qsidecar_keys_over)", x.from[1])
	}
	if len(w.Waiting) == 0 {
		return
	}
	now := time.Now()
	var names []any
	for _, q := range w.Waiting {
		segments := s.cursors.Segments(q, now, false)
		if segments[0] == cursor.Whole {
			x.whole = append(x.whole, q)
		}
		where := within(segments)
		part("SELECT 'ready', ?, 1 FROM (SELECT 1 FROM "+jobs+" WHERE "+laneRange+" AND "+where+" LIMIT 1) AS x", q, "r"+q, "r"+q)
		names = append(names, q)
	}
	part("SELECT 'returns', queue, returns FROM qsidecar_queues WHERE queue IN ("+marks(len(names))+")", names...)
}

// strangers is the condition that a lane is one of claims, of none of the hosts: the
// gaps between their lanes.
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
