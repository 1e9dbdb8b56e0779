package progress

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
)

// site is a Board on a virtual clock, with what it wrote.
type site struct {
	*Board
	mu        sync.Mutex
	saved     []string // each report of each write, and "|" after each write
	forgotten []string
	rows      []string // of other jobs
	err       error    // of the next calls
	outcomes  map[string]backends.ProgressOutcome
	foreign   bool // the sidecar doesn't have the leases
	log       strings.Builder
	sleep     func(time.Duration) // of the virtual clock
}

func board(t *testing.T, f func(t *testing.T, s *site)) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{outcomes: map[string]backends.ProgressOutcome{}}
		s.sleep = func(d time.Duration) {
			s.mu.Lock()
			s.mu.Unlock() //nolint:staticcheck // for the race detector: the Board sees what the test did before it let time pass
			time.Sleep(d)
			synctest.Wait()
		}
		s.Board = New(Config{
			Save: func(_ context.Context, all []backends.LeaseProgress) ([]backends.ProgressOutcome, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				out := make([]backends.ProgressOutcome, len(all))
				for i, p := range all {
					if out[i] = s.outcomes[p.Lease.Job]; p.Lease.Job == "refused" {
						return nil, backends.Refused(errors.New("by a trigger"))
					}
				}
				if s.err != nil {
					return nil, s.err
				}
				var texts []string
				for _, p := range all {
					texts = append(texts, fmt.Sprintf("%s=%d", p.Lease.Job, p.Progress.Done))
				}
				slices.Sort(texts)
				s.saved = append(append(s.saved, texts...), "|")
				return out, nil
			},
			Forget: func(_ context.Context, ids []string) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.forgotten = append(s.forgotten, ids...)
				return s.err
			},
			List: func(_ context.Context, after string, limit int) ([]string, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				from, _ := slices.BinarySearch(s.rows, after+"\x00")
				return s.rows[from:min(from+limit, len(s.rows))], nil
			},
			Has: func(backends.Lease) bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return !s.foreign
			},
			Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx)
		}()
		f(t, s)
		stop()
		<-ended
	})
}

func lease(job string) backends.Lease {
	number := uint64(0)
	for _, c := range job {
		number = number*31 + uint64(c)
	}
	return backends.Lease{Job: job, Token: backends.Token{Sidecar: 1, Number: number}}
}

func (s *site) report(t *testing.T, job string, done int64) {
	t.Helper()
	if confirm, err := s.Report(lease(job), backends.Progress{Done: done}); confirm || err != nil {
		t.Fatalf("report of %s: %v, %v", job, confirm, err)
	}
}

func (s *site) wants(t *testing.T, saved string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := strings.Join(s.saved, " "); got != saved {
		t.Errorf("it wrote %q, want %q", got, saved)
	}
}

// TestOneWriteASecond shows that the last report of each job is written once a second, and nothing if there is none.
func TestOneWriteASecond(t *testing.T) {
	board(t, func(t *testing.T, s *site) {
		for i := range int64(40) { // in 2.4 seconds
			s.report(t, "a", i)
			s.report(t, "b", 100+i)
			s.sleep(60 * time.Millisecond)
		}
		s.sleep(10 * time.Second)
		s.wants(t, "a=16 b=116 | a=33 b=133 | a=39 b=139 |")
		if s.unsaved != 0 || !s.Used() {
			t.Errorf("%d bytes wait", s.unsaved)
		}
	})
}

// TestEndOfALease shows that a job that ends needs no write any more, and loses its row if it has one.
func TestEndOfALease(t *testing.T) {
	board(t, func(t *testing.T, s *site) {
		s.report(t, "short", 1)
		s.Ended(lease("short").Token, "short")
		s.report(t, "long", 1)
		s.report(t, "failed", 1)
		s.sleep(2 * time.Second)
		s.Ended(lease("long").Token, "long")
		s.Ended(lease("failed").Token, "") // it goes on later
		s.Ended(lease("other").Token, "other")
		s.sleep(2 * time.Second)
		s.wants(t, "failed=1 long=1 |")
		if s.Used() || s.unsaved != 0 || !slices.Equal(s.forgotten, []string{"long"}) {
			t.Errorf("%d bytes wait, and it forgot %q", s.unsaved, s.forgotten)
		}
	})
}

// TestFlush shows that what a job that goes back has reported is written at once, or when it is too late for it.
func TestFlush(t *testing.T) {
	board(t, func(t *testing.T, s *site) {
		leases := []backends.Lease{lease("a")}
		if s.Unsaved(leases) {
			t.Error("a report waits that there isn't")
		}
		s.report(t, "a", 1)
		if !s.Unsaved(leases) {
			t.Error("the report doesn't wait")
		}
		s.Flush(t.Context(), leases)
		s.wants(t, "a=1 |")
		if s.Unsaved(leases) {
			t.Error("it waits after a flush")
		}
		s.report(t, "a", 2)
		s.turn <- struct{}{} // a write takes long
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			s.sleep(300 * time.Millisecond)
			cancel()
		}()
		over := make(chan struct{})
		go func() {
			s.Flush(ctx, leases)
			close(over)
		}()
		s.sleep(299 * time.Millisecond)
		select {
		case <-over:
			t.Error("it didn't wait for the write")
		default:
		}
		<-over
		<-s.turn
		s.Close(t.Context())
		s.wants(t, "a=1 | a=2 |")
	})
}

// TestLostLeases shows that the worker learns that its lease is lost: at once if it is another sidecar's, otherwise after a write.
func TestLostLeases(t *testing.T) {
	board(t, func(t *testing.T, s *site) {
		s.report(t, "a", 1)
		s.outcomes["a"] = backends.ProgressLost
		s.sleep(2 * time.Second)
		if _, err := s.Report(lease("a"), backends.Progress{}); !errors.Is(err, ErrLost) {
			t.Errorf("after a write: %v", err)
		}
		s.foreign = true
		s.outcomes["b"] = backends.ProgressLost
		for job, want := range map[string]error{"b": ErrLost, "c": nil} {
			confirm, err := s.Report(lease(job), backends.Progress{Done: 1})
			if !confirm || err != nil {
				t.Fatalf("%s: %v, %v", job, confirm, err)
			}
			if err := s.Confirm(t.Context(), lease(job)); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", job, err, want)
			}
		}
		if confirm, err := s.Report(lease("c"), backends.Progress{Done: 2}); confirm || err != nil {
			t.Errorf("a lease that a write found: %v, %v", confirm, err)
		}
		s.err = backends.Unavailable(errors.New("down"))
		if _, err := s.Report(lease("d"), backends.Progress{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Confirm(t.Context(), lease("d")); !backends.Retryable(err) {
			t.Errorf("without a database: %v", err)
		}
	})
}

// TestFailingWrites shows that reports wait for a database that is down, that this is logged once, and that a refused report keeps no
// other from being written.
func TestFailingWrites(t *testing.T) {
	board(t, func(t *testing.T, s *site) {
		s.err = backends.Unavailable(errors.New("down"))
		for i := range int64(5) {
			s.report(t, "a", i)
			s.sleep(3 * time.Second)
		}
		s.err = nil
		s.report(t, "refused", 1)
		s.report(t, "b", 1)
		s.sleep(3 * time.Second)
		slices.Sort(s.saved)
		s.wants(t, "a=4 b=1 | |")
		if s.unsaved != 0 {
			t.Errorf("%d bytes wait", s.unsaved)
		}
		for _, event := range []string{"progress_failed", "progress_recovered"} {
			if n := strings.Count(s.log.String(), event); n < 1 || n > 2 {
				t.Errorf("%d times %s:\n%s", n, event, s.log.String())
			}
		}
	})
}

// TestTooManyReports shows that the memory of reports is bounded.
func TestTooManyReports(t *testing.T) {
	board(t, func(t *testing.T, s *site) {
		s.err = backends.Unavailable(errors.New("down"))
		data := make([]byte, backends.MaxProgressData)
		for i := range 2 * maxUnsaved / len(data) {
			l := backends.Lease{Job: "a", Token: backends.Token{Sidecar: 1, Number: uint64(i)}}
			if _, err := s.Report(l, backends.Progress{Data: data}); errors.Is(err, ErrBusy) {
				if most := int64(maxUnsaved); s.unsaved > most || s.unsaved < most*9/10 {
					t.Errorf("busy with %d bytes", s.unsaved)
				}
				return
			}
		}
		t.Error("there is no limit")
	})
}

// TestSweep shows that rows of jobs that ended elsewhere are found, page by page, and leases of others forgotten.
func TestSweep(t *testing.T) {
	board(t, func(t *testing.T, s *site) {
		s.foreign = true
		if _, err := s.Report(lease("x"), backends.Progress{}); err != nil {
			t.Fatal(err)
		}
		for i := range batch + 10 {
			s.rows = append(s.rows, fmt.Sprintf("%04d", i))
		}
		s.sleep(SweepEvery + time.Second)
		if !slices.Equal(s.forgotten, s.rows) || s.Used() {
			t.Errorf("it looked at %d rows of %d", len(s.forgotten), len(s.rows))
		}
	})
}
