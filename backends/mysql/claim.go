package mysql

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// claiming is one claim in progress. It goes through its queues one after the other, with as many
// statements as each needs.
type claiming struct {
	backends.Claim
	s     *Store
	host  backends.Identity
	left  int64 // bytes that the claim can still return
	res   backends.ClaimResult
	seen  map[string]*cursor.Learned
	done  bool
	asked bool // in this round

	at     int // index of the present queue in Queues
	look   look
	whole  bool // ahead starts at the lows instead of the heads
	locks  bool // the statement locks rows, whatever part it scans
	sent   time.Time
	again  bool  // the queue is scanned again because jobs were given back
	below  int32 // newest first: the last urgency that was scanned
	bottom bool  // newest first: there is no other urgency
	ids    []int64
	found  []ready
}

// look is the part of a queue's ready jobs that a statement scans. InnoDB compares the end of a range only
// with entries that are not delete-marked. A range without live entries, such as the one of the higher
// priorities, makes it walk over all dead entries after the range, up to the first live one. While another
// session keeps a snapshot open, those are all jobs that were claimed since. So most claims scan only
// where the next job most likely is. They scan more only if that is not enough, or if a full scan is due.
// Such a larger scan reads without locks, which is 20 times as fast over dead entries. The claim then
// locks the rows that it found by id.
type look int

const (
	near   look = iota // from where the last claim ended, in the same urgency
	ahead              // from the heads on, in each urgency
	behind             // between the lows and the heads
)

// ready is a ready job that a claim locked.
type ready struct {
	backends.Job
	id, size, position   int64
	attempts, unrecorded int64
	max, timeout         int64
	urgency              int32
	large                bool // its payload is fetched after it is taken
}

// bytesOf is how many bytes of a row count against the limits: the payload, and headers that are larger
// than those that a sidecar stores.
const bytesOf = "LENGTH(payload) + IF(LENGTH(headers) > 65536, LENGTH(headers), 0)"

const readyColumns = "id, priority, position, " + bytesOf + ", IF(LENGTH(payload) <= ?, payload, NULL), attempts, unrecorded, fence, " +
	"max_attempts, timeout_ms, enqueued_at, headers, `key`, last_error"

// smallPayload is the least size up to which a claim's first statement returns payloads. Larger payloads
// are fetched after the jobs are taken.
const smallPayload = 16 << 10

func (c *claiming) small() int64 {
	return min(max(smallPayload, c.MaxBytes/int64(len(c.Slots))), c.MaxPayload)
}

// ask queues the next statement of the claim.
func (c *claiming) ask(t *tx) {
	p := c.Queues[c.at]
	c.asked, c.ids, c.found = true, nil, nil
	where := "urgency = @qsidecar_urgency"
	if !p.LIFO {
		where = c.where(p)
	} else { // one urgency after the other, because the server can't read one index in both directions at once
		t.add("SET @qsidecar_urgency = (SELECT MIN(urgency) FROM "+jobs+" WHERE lane = ? AND urgency > ?)", "r"+p.Queue, int64(c.below))
		t.each(func(r *result) error {
			if c.bottom = r.null(0); !c.bottom {
				c.below = int32(r.int(0))
			}
			return nil
		}, "SELECT @qsidecar_urgency")
	}
	sql, args := c.statement(p, where)
	if c.unlocked(p) {
		t.each(func(r *result) error {
			c.ids = append(c.ids, r.int(0))
			return nil
		}, sql, args...)
		return
	}
	t.each(c.read, sql, args...)
}

// statement returns the SQL that finds a claim's rows. It also locks them, unless the scan is unlocked.
func (c *claiming) statement(p backends.Policy, where string) (sql string, args []any) {
	tail := " FROM " + jobs + " WHERE " + laneRange + " AND " + where + " ORDER BY " + inLanes + " LIMIT ?"
	args = []any{"r" + p.Queue, "r" + p.Queue}
	if p.LIFO { // in one urgency
		tail = " FROM " + jobs + " WHERE lane = ? AND " + where + " ORDER BY place DESC, id DESC LIMIT ?"
		args = args[:1]
	}
	args = append(args, int64(len(c.Slots)-len(c.res.Jobs)))
	if c.unlocked(p) {
		return "SELECT id" + tail, args
	}
	return "SELECT " + readyColumns + tail + " FOR UPDATE SKIP LOCKED", append([]any{c.small()}, args...)
}

// unlocked reports whether the statement reads without locks.
func (c *claiming) unlocked(p backends.Policy) bool {
	return c.s.sql.skip == "" || !p.LIFO && c.look != near && !c.locks
}

// where returns the condition for the part of the queue to scan, and records when it is scanned.
func (c *claiming) where(p backends.Policy) string {
	now := time.Now()
	c.sent = now
	l := c.seen[p.Queue]
	if l == nil {
		l = &cursor.Learned{Asked: now}
		c.seen[p.Queue] = l
	}
	if c.look == near {
		if s, ok := c.s.Cursors.Near(p.Queue, now); ok {
			l.Full, l.Whole = false, false
			return within([]cursor.Segment{s})
		}
	}
	segments := c.s.Cursors.Segments(p.Queue, now, c.whole)
	ends := slices.IndexFunc(segments, func(s cursor.Segment) bool { return s.To == cursor.End })
	l.Full, l.Whole = ends == len(segments)-1, segments[0] == cursor.Whole
	if c.look == behind && !l.Full {
		return within(segments[ends+1:])
	}
	c.look = ahead
	return within(segments[:ends+1])
}

// lockFound locks the rows with the found ids, in the order of the ids, and reads them.
func (c *claiming) lockFound(ctx context.Context, t *tx) error {
	slices.Sort(c.ids)
	t.each(c.read, "SELECT "+readyColumns+" FROM "+byID+" WHERE id IN ("+list(c.ids)+") AND state = 'ready' AND run_at IS NULL ORDER BY id FOR UPDATE"+t.s.sql.skip, c.small())
	return t.Flush(ctx)
}

func (c *claiming) read(r *result) error {
	j := ready{
		id: r.int(0), urgency: int32(-r.int(1)), position: r.int(2), size: r.int(3), large: r.null(4),
		attempts: min(r.int(5), 32767), unrecorded: r.int(6), max: r.int(8), timeout: r.int(9),
	}
	j.Job = backends.Job{
		ID: core.ID(j.id), Queue: c.Queues[c.at].Queue, Payload: r.bytes(4), Priority: int16(r.int(1)), Fence: r.int(7),
		EnqueuedAt: r.instant(10).time(), Key: r.text(12), LastError: r.text(13),
	}
	j.Headers = core.ReadHeaders(r.text(11))
	c.found = append(c.found, j)
	return nil
}

// digest assigns the rows that were found to slots, and decides how to continue.
func (c *claiming) digest(t *tx, end *queuesState) error {
	p := c.Queues[c.at]
	if end.paused[p.Queue] {
		delete(c.seen, p.Queue)
		c.next()
		return nil
	}
	wanted := len(c.Slots) - len(c.res.Jobs)
	found, asked := len(c.found), max(len(c.ids), len(c.found))
	slices.SortFunc(c.found, func(a, b ready) int {
		order := cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.id, b.id))
		if p.LIFO {
			order = -order
		}
		return cmp.Or(cmp.Compare(a.urgency, b.urgency), order)
	})
	var taken, buried []ready
	for _, j := range c.found {
		if j.size > c.MaxPayload {
			buried = append(buried, j)
			continue
		}
		if j.size > c.left && (c.Strict || len(c.res.Jobs)+len(taken) > 0) {
			c.res.More = true
			break
		}
		c.left -= j.size
		taken = append(taken, j)
	}
	if err := c.take(t, p, taken); err != nil {
		return err
	}
	c.bury(t, p, buried)
	l := c.seen[p.Queue]
	for _, j := range taken {
		if l != nil { // minus 1, so that its position is scanned again: another job can have the same one
			l.Taken = append(l.Taken, cursor.Spot{Urgency: j.urgency, Position: j.position - 1})
		}
	}
	switch {
	case len(c.res.Jobs) == len(c.Slots) || c.res.More:
		c.done = true
		if l != nil && l.Full {
			l.All, l.Took = true, time.Since(c.sent)
		}
	case len(buried) > 0, found < asked && t.s.sql.skip == "": // there are free slots for other jobs, or some jobs changed since the scan
		if p.LIFO {
			c.below--
		}
	case found < asked && asked == wanted: // other transactions have locked some of these rows; there can be more rows after them
		c.locks = true
	case p.LIFO && !c.bottom:
	case l != nil && c.look == near:
		c.look, c.whole = ahead, true
	case l != nil && c.look == ahead && !l.Full:
		c.look, c.locks = behind, false
	default:
		c.through(p, l, end)
	}
	return nil
}

// through handles a queue that returned all its ready jobs. If jobs were given back behind the heads since
// the scans began, perhaps too late for the scans to see them, it scans the queue once more.
func (c *claiming) through(p backends.Policy, l *cursor.Learned, end *queuesState) {
	if l != nil {
		l.All, l.Took = true, time.Since(c.sent)
		if !c.again && c.s.Cursors.Returned(p.Queue, end.returns[p.Queue]) {
			c.s.Cursors.Forget(p.Queue)
			c.again, c.look, c.whole, c.locks = true, ahead, false, false
			return
		}
	}
	c.next()
}

// next moves on to the next queue.
func (c *claiming) next() {
	c.at++
	c.look, c.whole, c.locks, c.again, c.below, c.bottom = near, false, false, false, cursor.Beginning.Urgency, false
	c.done = c.at == len(c.Queues)
}
