// Package claim finds and claims ready jobs of qsidecar_jobs, in the order of their index. Its statements avoid
// what is slow in InnoDB: index entries of rows that are gone, and locks of rows that no claim takes.
//
// Start reading at Finder.Start, then scan in claim.go.
package claim

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// Finder claims the jobs of one database. The exported fields are set before the first use.
type Finder struct {
	Cursors *cursor.Set
	Now     func() time.Time // the clock of Cursors
	SQL     SQL
	Skip    bool            // the server can skip rows that other transactions have locked
	Life    context.Context // ends when the database is closed
	Log     *slog.Logger
	Run     func(ctx context.Context, p *session.Script) error // runs a script outside of any transaction

	running sync.WaitGroup // proofs
	mu      sync.Mutex     // guards the fields below, and running against Close
	proving bool
	proved  time.Time // when the last proof ended
	latest  int64     // the latest time that the server returned, in µs
}

// SQL are the statements of ../../sql/claim.sql, and some of ../../sql/write.sql.
type SQL struct {
	Claim, ClaimUnlocked, ClaimLIFO, ClaimLIFOUnlocked, NextUrgency, Urgency, LockReady, LockQueue, Status, Take, Payloads, Bury, Expire string
	Position, Probe                                                                                                                      string

	InsertFailures, InsertPrunable, NoteGroup, DeleteDone, DeleteFailures string
}

// Tx is how claims use a transaction.
type Tx struct {
	*session.Script
	Flush func(ctx context.Context) error
	Now   *session.Instant // the transaction's time; the claims set it
	Wrote *bool            // there is something to commit
}

// Close calls stop, which ends Life, and waits for the work in the background.
func (f *Finder) Close(stop func()) {
	f.mu.Lock()
	stop()
	f.mu.Unlock()
	f.running.Wait()
}

// margin is how long it usually takes at most until a row that has its position is in the index, where
// other transactions see at least its lock. It is not a guarantee: a statement can be delayed for longer,
// a node of a cluster can have a clock that is behind, and a clock can be set back. So claims also scan
// below the lows of their cursors from time to time (cursor.Set.Share).
const margin = 300 * time.Millisecond

// SawTime records a time of the server, in µs. It reports whether the server's clock was set back by more than
// margin, which cursors can't tolerate.
func (f *Finder) SawTime(now int64) (setBack bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	setBack = now < f.latest-margin.Microseconds()
	if setBack || now > f.latest {
		f.latest = now
	}
	return setBack
}

// Explain calls f with each statement that can find jobs of the queue: of a claim that begins where the last one ended (or anywhere,
// newest first), and of one that scans everything from the present cursors on.
func (f *Finder) Explain(p backends.Policy, explain func(sql string, args []any) error) error {
	for _, scan := range []scan{nearby, fromHeads} {
		c := &claim{Claim: backends.Claim{Queues: []backends.Policy{p}, Slots: make([]backends.Slot, 10), MaxBytes: 1 << 22, MaxPayload: 1 << 22}, f: f,
			seen: map[string]*cursor.Learned{}, scan: scan, whole: scan == fromHeads}
		where := "urgency = 0"
		if !p.LIFO {
			where = c.where(p)
		} else if scan == fromHeads {
			continue
		}
		sql, args := c.statement(p, where)
		if err := explain(sql, args); err != nil {
			return err
		}
	}
	return nil
}
