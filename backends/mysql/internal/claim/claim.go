package claim

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// claim is one claim in progress. It goes through its queues one after the other, with as many
// statements as each needs.
type claim struct {
	backends.Claim
	f       *Finder
	sidecar backends.Identity
	left    int64 // bytes that the claim can still return

	careful *core.Careful // nil: it leaves no rows out
	res     backends.ClaimResult
	missed  []backends.GateResult
	seen    map[string]*cursor.Learned
	done    bool
	asked   bool // in this round

	at     int // index of the present queue in Queues
	scan   scan
	whole  bool // fromHeads starts at the lows instead of the heads
	locks  bool // the statement locks rows, whatever part it scans
	sent   time.Time
	again  bool  // the queue is scanned again because jobs were given back
	below  int32 // newest first: the last urgency that was scanned
	bottom bool  // newest first: there is no other urgency
	ids    []int64
	found  []ready

	expired int // jobs that it has ended
}

// scan is the part of a queue's ready jobs that a statement scans. MariaDB compares the end of a range only
// with entries that are not delete-marked. (So does MySQL without {no_pushdown} in the statement.) A range without live entries,
// such as the one of the higher priorities, makes it walk over all dead entries after the range, up to the first live
// one. While another session keeps a snapshot open, those are all jobs that were claimed since. So most claims scan
// only where the next job most likely is. They scan more only if that is not enough, or if a full scan is due. Such a
// larger scan reads without locks, which is 20 times as fast over dead entries. The claim then locks the rows that it
// found by id.
type scan int

const (
	nearby      scan = iota // from where the last claim ended, in the same urgency
	fromHeads               // from the heads on, in each urgency
	behindHeads             // between the lows and the heads
)

// ready is a ready job that a claim locked.
type ready struct {
	backends.Job
	id, size, position   int64
	attempts, unrecorded int64
	losses               int64
	max, timeout         int64
	urgency              int32
	group                string          // in which it has a slot; empty: none
	startBefore          session.Instant // when it expires; 0: never
	removed              bool            // when it expires
	retain               int64           // in ms, its own; 0 if it has none
	large                bool            // its payload is fetched after it is taken
}

// longestRetention is that of a job in ms. An INSERT without checks can have stored a longer one.
const longestRetention = 316_224_000_000

// smallPayload is the least size up to which a claim's first statement returns payloads. Larger payloads
// are fetched after the jobs are taken.
const smallPayload = 16 << 10

func (c *claim) small() int64 {
	return min(max(smallPayload, c.MaxBytes/int64(len(c.Slots))), c.MaxPayload)
}

// queueScan queues the next statement of the claim.
func (c *claim) queueScan(t Tx) {
	p := c.Queues[c.at]
	c.asked, c.ids, c.found = true, nil, nil
	where := "urgency = @qsidecar_urgency"
	switch {
	case !p.LIFO && c.careful == nil:
		where = c.where(p)
	case !p.LIFO:
		where = table.Within([]cursor.Segment{cursor.Whole})
	default: // one urgency after the other, because the server can't read one index in both directions at once
		t.Add(c.f.SQL.NextUrgency, "r"+p.Queue, int64(c.below))
		t.Each(func(r *session.Result) {
			if c.bottom = r.Null(0); !c.bottom {
				c.below = int32(r.Int(0))
			}
		}, c.f.SQL.Urgency)
	}
	if c.careful != nil && len(c.careful.Except) > 0 {
		where += " AND id NOT IN (" + session.List(c.careful.Except) + ")"
	}
	sql, args := c.statement(p, where)
	if c.unlocked(p) {
		t.Ints(&c.ids, sql, args...)
		return
	}
	t.Each(c.read, sql, args...)
}

// statement returns the SQL that finds a claim's rows. It also locks them, unless the scan is unlocked.
func (c *claim) statement(p backends.Policy, where string) (sql string, args []any) {
	s := &c.f.SQL
	sql, unlocked := s.Claim, s.ClaimUnlocked
	args = []any{c.small(), "r" + p.Queue, "r" + p.Queue, session.Part{SQL: where}, int64(len(c.Slots) - len(c.res.Jobs))}
	if p.LIFO { // in one urgency
		sql, unlocked = s.ClaimLIFO, s.ClaimLIFOUnlocked
		args = slices.Delete(args, 1, 2)
	}
	if c.unlocked(p) {
		return unlocked, args[1:]
	}
	return sql, args
}

// unlocked reports whether the statement reads without locks.
func (c *claim) unlocked(p backends.Policy) bool {
	return !c.f.Skip || !p.LIFO && c.scan != nearby && !c.locks
}

// where returns the condition for the part of the queue to scan, and records when it is scanned.
func (c *claim) where(p backends.Policy) string {
	now := c.f.Now()
	c.sent = now
	l := c.seen[p.Queue]
	if l == nil {
		l = &cursor.Learned{Asked: now}
		c.seen[p.Queue] = l
	}
	if c.scan == nearby {
		if s, ok := c.f.Cursors.Near(p.Queue, now); ok {
			l.Full, l.Whole = false, false
			return table.Within([]cursor.Segment{s})
		}
	}
	segments := c.f.Cursors.Segments(p.Queue, now, c.whole)
	ends := slices.IndexFunc(segments, func(s cursor.Segment) bool { return s.To == cursor.End })
	l.Full, l.Whole = ends == len(segments)-1, segments[0] == cursor.Whole
	if c.scan == behindHeads && !l.Full {
		return table.Within(segments[ends+1:])
	}
	c.scan = fromHeads
	return table.Within(segments[:ends+1])
}

// lockFound locks the rows with the found ids, in the order of the ids, and reads them.
func (c *claim) lockFound(ctx context.Context, t Tx) error {
	slices.Sort(c.ids)
	t.Each(c.read, c.f.SQL.LockReady, c.small(), session.IDs(c.ids))
	return t.Flush(ctx)
}

func (c *claim) read(r *session.Result) {
	j := ready{
		id: r.Int(0), urgency: int32(-r.Int(1)), position: r.Int(2), size: r.Int(3), large: r.Null(4),
		attempts: min(r.Int(5), 32767), unrecorded: r.Int(6), max: r.Int(8), timeout: r.Int(9), losses: r.Int(14), group: r.Text(15),
		startBefore: r.Instant(17), removed: r.Int(18) != 0, retain: min(r.Int(19), longestRetention),
	}
	j.Job = backends.Job{
		ID: core.ID(j.id), Queue: c.Queues[c.at].Queue, Payload: r.Bytes(4), Priority: int16(r.Int(1)), Fence: r.Int(7),
		EnqueuedAt: r.Instant(10).Time(), Key: r.Text(12), LastError: r.Text(13), HasProgress: !r.Null(16),
	}
	j.Headers = core.ReadHeaders(r.Text(11))
	c.found = append(c.found, j)
}

// useFound assigns the rows that were found to slots, and decides how to continue.
func (c *claim) useFound(t Tx, end *queuesState) {
	p := c.Queues[c.at]
	missed := end.limited[p.Queue] && !p.Gated
	if missed {
		c.missed = append(c.missed, backends.GateResult{Queue: p.Queue, Missed: true})
	}
	if end.paused[p.Queue] || missed {
		delete(c.seen, p.Queue)
		c.next()
		return
	}
	wanted := len(c.Slots) - len(c.res.Jobs)
	found, asked := len(c.found), max(len(c.ids), len(c.found))
	fitting, tooLarge, expired := c.choose(p, *t.Now)
	few := c.careful != nil && c.careful.Few
	for _, j := range slices.Concat(fitting, tooLarge, expired) {
		if few {
			c.careful.Tried = append(c.careful.Tried, j.id)
		}
	}
	c.assign(t, p, fitting)
	for _, j := range fitting {
		if j.group != "" && end.fair[p.Queue] {
			c.res.Groups = append(c.res.Groups, backends.Group{Queue: p.Queue, Name: j.group})
		}
	}
	c.failTooLarge(t, p, tooLarge)
	c.expire(t, p, expired)
	l := c.seen[p.Queue]
	if l != nil {
		for _, j := range fitting { // minus 1, so that its position is scanned again: another job can have the same one
			l.Taken = append(l.Taken, cursor.Spot{Urgency: j.urgency, Position: j.position - 1})
		}
	}
	switch {
	case len(c.res.Jobs) == len(c.Slots) || c.res.More || few && len(c.careful.Tried) > 0:
		c.done = true
		if l != nil && l.Full {
			l.All, l.Took = true, c.f.Now().Sub(c.sent)
		}
	case len(tooLarge)+len(expired) > 0, found < asked && !c.f.Skip: // there are free slots for other jobs, or some jobs changed since the scan
		if p.LIFO {
			c.below--
		}
	case found < asked && asked == wanted: // other transactions have locked some of these rows; there can be more rows after them
		c.locks = true
	case p.LIFO && !c.bottom:
	case l != nil && c.scan == nearby:
		c.scan, c.whole = fromHeads, true
	case l != nil && c.scan == fromHeads && !l.Full:
		c.scan, c.locks = behindHeads, false
	default:
		c.finishQueue(p, l, end)
	}
}

// choose returns the found rows that fit into the claim's limits, in the queue's order, and those that no claim
// with this configuration can return, and those that expired.
func (c *claim) choose(p backends.Policy, now session.Instant) (fitting, tooLarge, expired []ready) {
	slices.SortFunc(c.found, func(a, b ready) int {
		order := cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.id, b.id))
		if p.LIFO {
			order = -order
		}
		return cmp.Or(cmp.Compare(a.urgency, b.urgency), order)
	})
	for _, j := range c.found {
		if j.startBefore != 0 && j.startBefore <= now {
			expired = append(expired, j)
			continue
		}
		if j.size > c.MaxPayload {
			tooLarge = append(tooLarge, j)
			continue
		}
		if j.size > c.left && (c.Strict || len(c.res.Jobs)+len(fitting) > 0) {
			c.res.More = true
			break
		}
		c.left -= j.size
		fitting = append(fitting, j)
	}
	return fitting, tooLarge, expired
}

// finishQueue handles a queue that returned all its ready jobs. If jobs were given back behind the heads since
// the scans began, perhaps too late for the scans to see them, it scans the queue once more.
func (c *claim) finishQueue(p backends.Policy, l *cursor.Learned, end *queuesState) {
	if l != nil {
		l.All, l.Took = true, c.f.Now().Sub(c.sent)
		if !c.again && c.f.Cursors.Returned(p.Queue, end.returns[p.Queue]) {
			c.f.Cursors.Forget(p.Queue)
			c.again, c.scan, c.whole, c.locks = true, fromHeads, false, false
			return
		}
	}
	c.next()
}

// next moves on to the next queue.
func (c *claim) next() {
	c.at++
	c.scan, c.whole, c.locks, c.again, c.below, c.bottom = nearby, false, false, false, cursor.Beginning.Urgency, false
	c.done = c.at == len(c.Queues)
}
