package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/dial/dialtest"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestOpenTxCommitLost: the connection of an open transaction breaks before or after its
// COMMIT. The Store finds out the outcome.
func TestOpenTxCommitLost(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		for when, lose := range map[string]func(s *Store, before bool){
			"cut":   (*Store).loseCommit,
			"proxy": func(s *Store, before bool) { s.commitErrors()["ERROR 08006"](before) },
		} {
			for _, before := range []bool{true, false} {
				t.Run(fmt.Sprint(when, before), func(t *testing.T) {
					t.Parallel()
					s := open(t, Options{URL: filled(t, p), wrap: dialtest.Through})
					must(t, s.o.URL, "CREATE TABLE q (id int PRIMARY KEY, n int); INSERT INTO q VALUES (1, 0)")
					h := held(t, s)
					lose(s, before)
					_, err := h.CommitWith(t.Context(), backends.CommitContent{}, adds)
					if want := map[bool]error{true: backends.ErrTxLost}[before]; !errors.Is(err, want) || want == nil && err != nil {
						t.Errorf("%v, want %v", err, want)
					}
					if h.Open() {
						t.Error("it is still open")
					}
					n := map[bool]string{true: "0", false: "1"}[before]
					must(t, s.o.URL, "DO $$BEGIN ASSERT (SELECT n = "+n+" FROM q), 'n is not "+n+"'; END$$")
				})
			}
		}
	})
}

// TestOpenTxStaysOpenAfterRefusedCommit: a refused write is undone and nothing else, and the transaction continues.
func TestOpenTxStaysOpenAfterRefusedCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		must(t, s.o.URL, "CREATE TABLE q (id int PRIMARY KEY, n int CHECK (n < 2)); INSERT INTO q VALUES (1, 1)")
		h := held(t, s)
		for range 2 {
			if _, err := h.CommitWith(t.Context(), backends.CommitContent{}, adds); !backends.IsRefused(err) || !h.Open() {
				t.Fatalf("%v, open: %t", err, h.Open())
			}
		}
		never := errors.New("not sent")
		if _, err := h.CommitWith(t.Context(), backends.CommitContent{}, backends.TxHooks{Before: func(context.Context, backends.SQL, *backends.CommitContent) error { return never }}); !errors.Is(err, never) || !h.Open() {
			t.Errorf("%v, open: %t", err, h.Open())
		}
		if err := exec(t, s.o.URL, "SELECT 1 FROM q FOR UPDATE NOWAIT"); err == nil {
			t.Error("its row is free")
		}
		if err := errors.Join(h.Ping(t.Context()), h.Rollback(t.Context())); err != nil || h.Open() {
			t.Errorf("%v, open: %t", err, h.Open())
		}
		must(t, s.o.URL, "SELECT 1 FROM q FOR UPDATE NOWAIT")
	})
}

// TestOpenTxIdle: the server ends a connection that is idle.
func TestOpenTxIdle(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		must(t, s.o.URL, "CREATE TABLE q (id int PRIMARY KEY, n int); INSERT INTO q VALUES (1, 0)")
		h := held(t, s)
		var idle string
		if err := h.Do(t.Context(), &backends.Statement{Text: "SELECT current_setting('idle_in_transaction_session_timeout')", Row: func(cells [][]byte) error { idle = string(cells[0]); return nil }}); err != nil || idle != "1min" {
			t.Fatalf("the server ends it after %q, %v", idle, err)
		}
		// The timeout is short from the end of this statement on, whatever it was before.
		if err := h.Do(t.Context(), &backends.Statement{Text: "SET LOCAL idle_in_transaction_session_timeout = 1"}); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the row is free", func() bool { return exec(t, s.o.URL, "SELECT 1 FROM q FOR UPDATE NOWAIT") == nil })
		if _, err := h.CommitWith(t.Context(), backends.CommitContent{}, adds); !errors.Is(err, backends.ErrTxLost) || h.Open() {
			t.Errorf("%v, open: %t", err, h.Open())
		}
	})
}

// TestOpenTxOutlivesTransactionTimeout: a server's limit for transactions doesn't hold for those of jobs.
func TestOpenTxOutlivesTransactionTimeout(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		if strings.HasPrefix(p.Version, "13") {
			return // it has no such limit
		}
		url := filled(t, p)
		must(t, url, `CREATE TABLE q (id int PRIMARY KEY, n int); INSERT INTO q VALUES (1, 0);
			DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET transaction_timeout = ''4s''', current_database()); END$$`)
		s := open(t, Options{URL: url})
		limit := ""
		if err := held(t, s).Do(t.Context(), &backends.Statement{Text: "SELECT current_setting('transaction_timeout')", Row: func(cells [][]byte) error { limit = string(cells[0]); return nil }}); err != nil || limit != "0" {
			t.Errorf("the server ends the transaction after %q, %v", limit, err)
		}
	})
}

// adds changes the row in the transaction.
var adds = backends.TxHooks{Writes: true, Before: func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
	return sql.Do(ctx, &backends.Statement{Text: "UPDATE public.q SET n = n + 1 WHERE true"})
}}

// held returns an open transaction that has locked the row.
func held(t *testing.T, s *Store) backends.OpenTx {
	t.Helper()
	h, err := s.OpenTx(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	if err := h.Do(t.Context(), &backends.Statement{Text: "SELECT 1 FROM public.q FOR UPDATE"}); err != nil || !h.Open() {
		t.Fatal(err, h.Open())
	}
	return h
}
