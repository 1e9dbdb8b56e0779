package postgres

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// newServer starts a server whose files a test replaces.
func newServer(t *testing.T) *testserver.Postgres {
	t.Helper()
	p, err := testserver.StartPostgres(t.Context(), testserver.NewestPostgres, testserver.Options{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestFilesRestored: after a clean shutdown the server starts with the files of an earlier clean shutdown. The row of
// its epoch is the same, and new jobs have positions that the cursors have passed.
func TestFilesRestored(t *testing.T) {
	p := newServer(t)
	s := open(t, Options{URL: p.Admin()})
	beat(t, s, 1)
	if err := errors.Join(p.Halt(), p.Snapshot(), p.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	fill(t, s, backlog)
	n := uint64(1)
	testwait.Until(t, "something is proven", func() bool {
		n += 1000
		take(t, s, 1, 900, n)
		fill(t, s, 1)
		lows := s.Cursors.Lows("q")
		return len(lows) > 0 && lows[0].Position >= backlog/2
	})
	if err := errors.Join(p.Halt(), p.RollBack(), p.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	must(t, p.Admin(), late)
	testwait.Until(t, "a claim finds the new job", func() bool {
		n += 1000
		r, err := s.Commit(t.Context(), claimBatch(1, 1, n))
		if err != nil && !backends.Retryable(err) {
			t.Fatal(err)
		}
		return err == nil && len(r.Claims[0].Jobs) > 0
	})
}

// TestFilesRestoredInACommit: the reply to a COMMIT is lost, and the server starts with the files of an earlier clean
// shutdown. It gives the transaction's number to another transaction, which commits or is in progress.
func TestFilesRestoredInACommit(t *testing.T) {
	p := newServer(t)
	s := open(t, Options{URL: p.Admin()})
	if err := errors.Join(p.Halt(), p.Snapshot(), p.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, now := range []string{"committed", "in progress"} {
		t.Run(now, func(t *testing.T) {
			ctx := testwait.Context(t)
			var other pgx.Tx
			restore := func(c *pgx.Conn, before bool) {
				if before {
					return
				}
				s.fault.Store(nil)
				var last int
				err := c.QueryRow(ctx, "SELECT max(xmin::text::bigint) FROM qsidecar.qsidecar_jobs WHERE payload = 'lost'").Scan(&last)
				if err := errors.Join(err, p.Halt(), p.RollBack(), p.Restart(ctx)); err != nil {
					t.Error(err)
				}
				for x := 0; x < last; {
					if other != nil {
						if err := other.Commit(ctx); err != nil {
							t.Error(err)
							return
						}
					}
					other = begun(t, p.Admin())
					if err := other.QueryRow(ctx, "SELECT pg_current_xact_id()::text::bigint").Scan(&x); err != nil {
						t.Error(err)
						return
					}
				}
				if now == "committed" {
					if err := other.Commit(ctx); err != nil {
						t.Error(err)
					}
				}
			}
			s.fault.Store(&restore)
			_, err := s.Commit(ctx, backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("lost")}}}}})
			if now == "committed" {
				if !errors.Is(err, backends.ErrUnknownOutcome) {
					t.Errorf("%v, want an unknown outcome", err)
				}
				return
			}
			if !backends.Retryable(err) || errors.Is(err, backends.ErrUnknownOutcome) {
				t.Errorf("%v, want unavailable", err)
			}
			if err := other.Commit(ctx); err != nil {
				t.Errorf("the transaction that has the number now: %v", err)
			}
		})
	}
}

// TestEpochOfAnotherServer: a dump contains the epoch of the server that it comes from. Another server replaces it, so
// that a lost COMMIT can be resolved at its own standbys.
func TestEpochOfAnotherServer(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		must(t, url, `INSERT INTO qsidecar.qsidecar_epoch VALUES (1, '1/00000001/dump') ON CONFLICT (singleton) DO UPDATE SET epoch = EXCLUDED.epoch`)
		s := open(t, Options{URL: url})
		fill(t, s, 1)
		a, err := s.ask(t.Context(), "3")
		if err != nil || a.epoch == "" || strings.HasPrefix(a.epoch, "1/") {
			t.Errorf("the epoch is %q, %v, want one of this server", a.epoch, err)
		}
	})
}
