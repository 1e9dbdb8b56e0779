package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/dial/dialtest"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestOpenTxCommitLost breaks the connection of an open transaction before or after its COMMIT and checks
// that the outcome is found out.
func TestOpenTxCommitLost(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		for when, lose := range map[string]func(s *Store, before bool){
			"cut":   (*Store).loseCommit,
			"proxy": func(s *Store, before bool) { s.commitErrors()["2013"](before) },
		} {
			for _, before := range []bool{true, false} {
				t.Run(fmt.Sprint(when, before), func(t *testing.T) {
					t.Parallel()
					name := m.Database(t)
					s := open(t, Options{URL: m.URL(name), wrap: dialtest.Through})
					must(t, m, name, "CREATE TABLE q (id int PRIMARY KEY, n int)", "INSERT INTO q VALUES (1, 0)")
					h := lock(t, s)
					lose(s, before)
					_, err := h.CommitWith(t.Context(), backends.CommitContent{}, adds)
					if want := map[bool]error{true: backends.ErrTxLost}[before]; !errors.Is(err, want) || want == nil && err != nil {
						t.Errorf("%v, want %v", err, want)
					}
					if h.Open() {
						t.Error("it is still open")
					}
					n := map[bool]string{true: "0", false: "1"}[before]
					if got := numberOf(t, m, name, "SELECT n FROM q"); fmt.Sprint(got) != n {
						t.Errorf("n is %d, want %s", got, n)
					}
				})
			}
		}
	})
}

// TestOpenTxStaysOpenAfterRefusedCommit checks that a rejected commit is undone, and nothing else: the transaction stays open.
func TestOpenTxStaysOpenAfterRefusedCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		must(t, m, name, "CREATE TABLE q (id int PRIMARY KEY, n int CHECK (n < 2))", "INSERT INTO q VALUES (1, 1)")
		h := lock(t, s)
		for range 2 {
			if _, err := h.CommitWith(t.Context(), backends.CommitContent{}, adds); !backends.IsRefused(err) || !h.Open() {
				t.Fatalf("%v, open: %t", err, h.Open())
			}
		}
		never := errors.New("not sent")
		if _, err := h.CommitWith(t.Context(), backends.CommitContent{}, backends.TxHooks{Before: func(context.Context, backends.SQL, *backends.CommitContent) error { return never }}); !errors.Is(err, never) || !h.Open() {
			t.Errorf("%v, open: %t", err, h.Open())
		}
		if free(t, m, name) {
			t.Error("its row is free")
		}
		if err := errors.Join(h.Ping(t.Context()), h.Rollback(t.Context())); err != nil || h.Open() {
			t.Errorf("%v, open: %t", err, h.Open())
		}
		if !free(t, m, name) {
			t.Error("its row is locked")
		}
	})
}

// TestOpenTxStoresLargeJobs checks that the jobs that follow from an ack in an open transaction can take several packets, although
// the call that began the transaction has ended.
func TestOpenTxStoresLargeJobs(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name), packet: 1 << 20}) // as if the server accepted no more
		must(t, m, name, "CREATE TABLE q (id int PRIMARY KEY, n int)", "INSERT INTO q VALUES (1, 0)")
		h := lock(t, s)
		jobs := slices.Repeat([]backends.NewJob{{Queue: "next", Payload: make([]byte, 100_000)}}, 10)
		r, err := h.CommitWith(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: jobs}}}, adds)
		if err != nil || len(r.Writes[0].Stored) != len(jobs) {
			t.Errorf("%+v, %v", r, err)
		}
		if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs"); n != int64(len(jobs)) {
			t.Errorf("%d of %d jobs are stored", n, len(jobs))
		}
	})
}

// TestOpenTxIdle checks that the server is configured to end the connection of an open transaction that
// idles, and that its end is reported as backends.ErrTxLost.
func TestOpenTxIdle(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		name := m.Database(t)
		s := open(t, Options{URL: m.URL(name)})
		must(t, m, name, "CREATE TABLE q (id int PRIMARY KEY, n int)", "INSERT INTO q VALUES (1, 0)")
		h := lockFor(t, s, 76*time.Second+time.Millisecond) // rounded up
		c := h.(*openTx).c
		for _, setting := range map[bool][]string{false: {"wait_timeout"}, true: {"wait_timeout", "idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout"}}[s.dialer.Server.Maria] {
			if n, err := c.Number(t.Context(), "SELECT @@SESSION."+setting); err != nil || n != 77 {
				t.Errorf("%s is %d, want 77; %v", setting, n, err)
			}
		}
		id, err := c.Number(t.Context(), "SELECT CONNECTION_ID()")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Kill(t.Context(), id); err != nil { // as the server does itself after the timeout
			t.Fatal(err)
		}
		testwait.Until(t, "the row is free", func() bool { return free(t, m, name) })
		if _, err := h.CommitWith(t.Context(), backends.CommitContent{}, adds); !errors.Is(err, backends.ErrTxLost) || h.Open() {
			t.Errorf("%v, open: %t", err, h.Open())
		}
	})
}

// TestOpenTxNeedsSkipLocked checks that OpenTx needs a server with SKIP LOCKED. Without it, each claim would
// wait.
func TestOpenTxNeedsSkipLocked(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		s := open(t, Options{URL: m.URL(m.Database(t))})
		err := s.NoOpenTx()
		if (err != nil) != (m.Kind == testserver.MariaDB105) || err != nil && !strings.Contains(err.Error(), "MariaDB 10.5") {
			t.Errorf("%s: %v", m.Kind, err)
		}
	})
}

// free reports whether the row is not locked.
func free(t *testing.T, m *testserver.MySQL, name string) bool {
	t.Helper()
	db, err := m.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.ExecContext(t.Context(), "SELECT 1 FROM q FOR UPDATE NOWAIT")
	return err == nil
}

// adds changes the row.
var adds = backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
	return sql.Do(ctx, &backends.Statement{Text: "UPDATE q SET n = n + 1"})
}}

// lock returns an open transaction that has locked the row.
func lock(t *testing.T, s *Store) backends.OpenTx { return lockFor(t, s, time.Minute) }

func lockFor(t *testing.T, s *Store, idle time.Duration) backends.OpenTx {
	t.Helper()
	h, err := s.OpenTx(t.Context(), idle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	if err := h.Do(t.Context(), &backends.Statement{Text: "SELECT 1 FROM q FOR UPDATE"}); err != nil || !h.Open() {
		t.Fatal(err, h.Open())
	}
	return h
}
