package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// site is a Recorder on a virtual clock, with its counters and what it wrote.
type site struct {
	*Recorder
	turn     sync.Mutex // for the race detector: the Recorder sees what the test did before it let time pass
	counters map[string]Counters
	writes   [][]backends.HourTotals
	err      error // of the next writes
	log      strings.Builder
	wait     func(time.Duration) // lets time pass while the Recorder works
}

// record runs f beside a Recorder. It begins at the start of an hour.
func record(t *testing.T, f func(t *testing.T, s *site)) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{counters: map[string]Counters{}}
		s.wait = func(d time.Duration) {
			s.turn.Lock()
			s.turn.Unlock() //nolint:staticcheck // see turn
			time.Sleep(d)
			synctest.Wait()
		}
		s.Recorder = New(Config{
			Count: func(each func(string, Counters)) {
				s.turn.Lock()
				defer s.turn.Unlock()
				for name, c := range s.counters {
					each(name, c)
				}
			},
			Write: func(_ context.Context, _ time.Time, rows []backends.HourTotals) error {
				s.turn.Lock()
				defer s.turn.Unlock()
				if s.err == nil {
					s.writes = append(s.writes, rows)
				}
				return s.err
			},
			Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx)
		}()
		synctest.Wait()
		f(t, s)
		stop()
		<-ended
	})
}

// work counts jobs of a queue.
func (s *site) work(queue string, enqueued, acked, failed int64) {
	c := s.counters[queue]
	c.Enqueued, c.Acked, c.Failed = c.Enqueued+enqueued, c.Acked+acked, c.Failed+failed
	c.Runs[3] += acked
	s.counters[queue] = c
}

// TestLastHour shows that the last hour is there without a visit: by minute, with gaps and depths, and no longer than an hour.
func TestLastHour(t *testing.T) {
	record(t, func(t *testing.T, s *site) {
		start := time.Now()
		s.work("q", 10, 4, 1)
		s.wait(30 * time.Second)
		s.work("q", 5, 0, 0)
		s.Depths([]backends.QueueStats{{Queue: "q", Ready: 7}, {Queue: "empty"}})
		s.Depths([]backends.QueueStats{{Queue: "q", Ready: 3}})
		s.wait(5 * time.Minute)
		s.work("q", 0, 11, 0)
		s.wait(time.Minute)
		since, points := s.LastHour("q")
		if !since.Equal(start) || len(points) != 2 || points[0].Enqueued != 15 || points[0].Acked != 4 || points[0].Failed != 1 || points[0].Ready != 7 || points[0].Runs[3] != 4 {
			t.Fatalf("since %v: %+v", since, points)
		}
		if gap := points[1].At.Sub(points[0].At); gap != 5*time.Minute || points[1].Acked != 11 || points[1].Ready != -1 {
			t.Errorf("after %v: %+v", gap, points[1])
		}
		if got := s.Queues(); !slices.Equal(got, []string{"q"}) {
			t.Errorf("the queues with numbers are %q", got)
		}
		s.wait(56 * time.Minute)
		if since, points := s.LastHour("q"); len(points) != 1 || !since.Equal(start.Add(3*time.Minute)) {
			t.Errorf("an hour later: since %v, %+v", since, points)
		}
		s.wait(10 * time.Minute)
		if got := s.Queues(); len(got) != 0 {
			t.Errorf("after an idle hour %q have numbers", got)
		}
	})
}

// TestOneWriteAnHour shows that a sidecar writes once an hour, only if something happened, and at its end.
func TestOneWriteAnHour(t *testing.T) {
	record(t, func(t *testing.T, s *site) {
		for range 180 {
			s.work("q", 1, 1, 0)
			s.work("p", 2, 0, 0)
			s.wait(time.Minute)
		}
		s.wait(WriteEvery)
		if len(s.writes) != 3 {
			t.Fatalf("in 3 hours it wrote %d times: %+v", len(s.writes), s.writes)
		}
		var enqueued int64
		for _, rows := range s.writes {
			if len(rows) != 2 || rows[0].Queue != "p" {
				t.Errorf("a write has the rows %+v", rows)
			}
			enqueued += rows[0].Enqueued
		}
		if enqueued != 360 {
			t.Errorf("p has %d enqueued jobs in the database, want 360", enqueued)
		}
		s.wait(5 * time.Hour)
		if len(s.writes) != 3 {
			t.Errorf("an idle sidecar wrote %+v", s.writes[3:])
		}
		s.work("q", 1, 0, 0)
		s.Close(t.Context())
		if len(s.writes) != 4 || s.writes[3][0].Enqueued != 1 {
			t.Errorf("at the end it wrote %+v", s.writes[3:])
		}
	})
}

// TestFailingWrites shows that a failed write is logged once, repeated, and that the totals wait for it for a day.
func TestFailingWrites(t *testing.T) {
	record(t, func(t *testing.T, s *site) {
		s.err = errors.New("no right to qsidecar_history")
		for range 30 {
			s.work("q", 10, 0, 0)
			s.wait(time.Hour)
		}
		if got := strings.Count(s.log.String(), "history_failed"); got != 1 {
			t.Errorf("30 hours of failures logged %d lines:\n%s", got, s.log.String())
		}
		if rows := s.Unwritten("q"); len(rows) > unwrittenHours+1 {
			t.Errorf("%d hours wait", len(rows))
		}
		s.err = nil
		s.wait(2 * time.Hour)
		if len(s.writes) != 1 || len(s.writes[0]) < unwrittenHours-2 || s.writes[0][0].Enqueued != 10 {
			t.Errorf("then it wrote %+v", s.writes)
		}
		if got := strings.Count(s.log.String(), "history_recovered"); got != 1 {
			t.Errorf("the recovery logged %d lines", got)
		}
		s.err = backends.ErrUnknownOutcome
		s.work("q", 1, 0, 0)
		s.wait(2 * time.Hour)
		if rows := s.Unwritten(""); len(rows) != 0 {
			t.Errorf("%+v would be written twice", rows)
		}
	})
}

// TestManyQueues shows that only MaxQueues queues have numbers of their own, and that the others are in the sum.
func TestManyQueues(t *testing.T) {
	record(t, func(t *testing.T, s *site) {
		const more = 50
		for i := range MaxQueues + more {
			s.work(fmt.Sprintf("q%03d", i), 1, 0, 0)
		}
		s.wait(time.Minute)
		_, other := s.LastHour(Other)
		if n := len(s.Queues()); n != MaxQueues+1 || len(other) != 1 || other[0].Enqueued != more {
			t.Errorf("%d queues have numbers, and the others %+v", n, other)
		}
		s.Close(t.Context())
		if len(s.writes) != 1 || len(s.writes[0]) != MaxQueues+1 {
			t.Errorf("it wrote %d rows", len(s.writes[0]))
		}
	})
}

// TestTwoSidecars shows that the totals of two sidecars of one database add up.
func TestTwoSidecars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		for range 2 {
			counters := Counters{}
			r := New(Config{Log: slog.New(slog.DiscardHandler), Write: db.AddHistory, Count: func(each func(string, Counters)) { each("q", counters) }})
			counters = Counters{Enqueued: 3, Acked: 2}
			r.Close(t.Context())
		}
		rows, err := db.History(t.Context(), "q")
		if err != nil || len(rows) != 1 || rows[0].Enqueued != 6 || rows[0].Acked != 4 || rows[0].Hour != backends.HourOf(time.Now()) {
			t.Errorf("the database has %+v, %v", rows, err)
		}
	})
}
