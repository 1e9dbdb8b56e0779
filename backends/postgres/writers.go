package postgres

import (
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// The exception to the proof in cursor/proof.go, which waits until all transactions below a number have ended.
//
// A long-running or prepared transaction that writes stops the oldest xid from advancing, and the
// cursors' lows with it. Most such transactions never inserted a job. Those that did hold a lock
// on the sequence of positions until they end, and one on their xid. So if a low is blocked for
// long, the Store queries these locks. Once each transaction that held them in one query is missing
// from a later query, no position of before the first query is still in use.

// writers are the transactions that can own a position from before an event.
type writers struct {
	mu    sync.Mutex
	next  time.Time // time of the next query
	event cursor.Event
	left  []string // xids that still hold the locks; nil: not queried yet
}

const ownersLookEvery = 500 * time.Millisecond

// askForWriters queues a query of the locks, at most once in ownersLookEvery.
func (t *tx) askForWriters() {
	w, now := &t.s.writers, t.s.LocalTime()
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Before(w.next) {
		return
	}
	w.next = now.Add(ownersLookEvery)
	event := t.began
	t.each(t.s.sql.owners, func(rows pgx.Rows) error {
		var xids []string
		if err := rows.Scan(&xids); err != nil {
			return err
		}
		if over := w.saw(event, xids); over != 0 {
			t.s.Cursors.Over(over)
		}
		return nil
	})
}

// saw records the result of a query that ran after an event. It returns the event whose owners
// have all ended, or 0 if there is none.
func (w *writers) saw(event cursor.Event, xids []string) (over cursor.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(xids, "") || event == cursor.Never {
		return 0
	}
	if w.event != 0 {
		w.left = slices.DeleteFunc(w.left, func(xid string) bool { return !slices.Contains(xids, xid) })
		if len(w.left) > 0 {
			return 0
		}
		over = w.event
	}
	w.event, w.left = event, xids
	if len(xids) == 0 {
		over, w.event = max(over, event), 0
	}
	return over
}
