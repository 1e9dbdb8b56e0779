package bridge

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// historian is a database that counts what the history costs.
type historian struct {
	*memory.Backend
	stats, writes atomic.Int32
	refuses       atomic.Bool
}

func (h *historian) Stats(ctx context.Context, queue string) ([]backends.QueueStats, error) {
	h.stats.Add(1)
	return h.Backend.Stats(ctx, queue)
}

func (h *historian) AddHistory(ctx context.Context, now time.Time, rows []backends.HourTotals) error {
	h.writes.Add(1)
	if h.refuses.Load() {
		return errors.New("permission denied for table qsidecar_history")
	}
	return h.Backend.AddHistory(ctx, now, rows)
}

// historyOf asks a sidecar for the history of a queue.
func historyOf(t *testing.T, c *client, queue string) protocol.QueueHistory {
	t.Helper()
	c.send(`{"op":"history","queue":%q}`, queue)
	line, err := c.line()
	var r protocol.Reply
	if err == nil {
		err = protocol.JSON.DecodeReply(line, &r)
	}
	if err != nil || len(r.History) != 1 {
		t.Fatalf("the history of %s: %s, %v", queue, line, err)
	}
	return r.History[0]
}

// TestHistoryBeginsWithTheSidecar shows that the last hour and the hours exist before the first question, that they cost no
// statement for depths and one write an hour, and that the end of a sidecar loses none of it.
func TestHistoryBeginsWithTheSidecar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &historian{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		work := func() {
			c.call(`{"op":"enqueue","jobs":[{"queue":"mail"},{"queue":"mail"},{"queue":"mail"}]}`)
			c.call(`{"op":"ack","lease":%q}`, c.claim1("mail").Lease)
			c.call(`{"op":"nack","lease":%q,"dead":true}`, c.claim1("mail").Lease)
		}
		for range 3 {
			work()
			time.Sleep(time.Hour)
		}
		work()
		time.Sleep(20 * time.Minute)
		if stats, writes := db.stats.Load(), db.writes.Load(); stats != 0 || writes != 3 {
			t.Errorf("in more than 3 hours it read %d depths and wrote %d times", stats, writes)
		}
		h := historyOf(t, c, "mail")
		if len(h.Minutes) != 1 || h.Minutes[0].Enqueued != 3 || h.Minutes[0].Acked != 1 || h.Minutes[0].Failed != 1 || h.Minutes[0].Runs != 2 || h.Minutes[0].Ready.Set {
			t.Errorf("the last hour is %+v", h.Minutes)
		}
		if len(h.Hours) != 4 || h.Hours[0].Enqueued != 3 || h.Hours[3].Enqueued != 3 {
			t.Errorf("the hours are %+v", h.Hours)
		}
		c.call(`{"op":"stats"}`) // shows a depth, which the history keeps
		time.Sleep(time.Minute)
		if h := historyOf(t, c, "mail"); h.Minutes[len(h.Minutes)-1].Ready != protocol.Some[int64](4) {
			t.Errorf("after statistics the last hour is %+v", h.Minutes)
		}
		s.stop()
		if err := s.wait(t); err != nil {
			t.Error(err)
		}
		rows, err := db.History(t.Context(), "mail")
		if err != nil || len(rows) != 4 || rows[3].Enqueued != 3 || rows[3].Ready != 4 {
			t.Errorf("after its end the database has %+v, %v", rows, err)
		}
	})
}

// TestHistoryStopsNothing shows that a database that refuses the history loses nothing else.
func TestHistoryStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &historian{Backend: memory.New()}
		db.refuses.Store(true)
		s := start(t, options(db))
		c := s.dial(t)
		for range 5 {
			c.call(`{"op":"enqueue","queue":"mail"}`)
			time.Sleep(time.Hour)
			c.call(`{"op":"ack","lease":%q}`, c.claim1("mail").Lease)
		}
		if h := historyOf(t, c, "mail"); len(h.Hours) < 5 || h.Hours[0].Enqueued != 1 {
			t.Errorf("the hours that wait are %+v", h.Hours)
		}
		if n := db.writes.Load(); n < 4 || n > 60 {
			t.Errorf("it tried %d times in 5 hours", n)
		}
		s.stop()
		if err := s.wait(t); err != nil {
			t.Error(err)
		}
	})
}
