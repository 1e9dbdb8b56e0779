package postgres

import (
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// A transaction that writes for long, or a prepared one, keeps the oldest xid from moving
// on, and floors with it, although most such transactions never inserted a job. Those that
// did hold a lock on the sequence of positions until they end, and one on their xid. So
// where a floor has been waiting for long, these locks are looked at: all that held them at
// one look must be gone at later ones.

// writers are the transactions that may own a position of before an event.
type writers struct {
	mu    sync.Mutex
	next  time.Time // of the next look
	event cursor.Event
	left  []string // xids; nil: not looked at yet
}

const ownersLookEvery = 500 * time.Millisecond

// askForWriters queues a look at the locks, at most once in ownersLookEvery.
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

// saw takes a look into account that was made after an event. It returns the event all
// whose owners are over; 0: none.
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
