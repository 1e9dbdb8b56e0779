package postgres

import (
	"errors"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestServerCrashesInACommit: the server crashes before a commit reached its disk,
// forgets the transaction, and assigns its number to another one, which commits.
// The Store must not report that the first commit succeeded.
func TestServerCrashesInACommit(t *testing.T) {
	t.Setenv(testserver.EnvURL, "") // a server that can be damaged
	for _, through := range []string{"directly", "through a pooler"} {
		t.Run(through, func(t *testing.T) {
			versions := testserver.Versions()
			p, err := testserver.StartPostgres(t.Context(), versions[len(versions)-1], testserver.Options{Durable: true, Settings: map[string]string{
				"wal_writer_delay": "10s", "wal_level": "minimal", "max_wal_senders": "0", "autovacuum": "off",
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Stop(); err != nil {
					t.Error(err)
				}
			})
			url := p.Admin()
			way := url
			if through != "directly" {
				b, err := testserver.StartPgBouncer(t.Context(), p, 6)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := b.Stop(); err != nil {
						t.Error(err)
					}
				})
				if way, err = b.URL(url); err != nil {
					t.Fatal(err)
				}
			}
			s := open(t, Options{URL: way})
			writer := stopLogWriter(t, p) // the server writes nothing to the log's disk too early
			beat(t, s, 1)
			fill(t, s, 2)
			jobs := take(t, s, 1, 2, 1)
			must(t, url, "CREATE TABLE synced ()") // also syncs the claim, which did not wait for the disk
			lost := backends.Lease{Job: jobs[0].ID, Token: jobs[0].Token}
			crash := func(_ *pgx.Conn, before bool) {
				if !before {
					return
				}
				s.fault.Store(nil)
				crashAndReuse(t, p, writer)
			}
			s.fault.Store(&crash)
			ack := func(l backends.Lease) (backends.Results, error) {
				return s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: []backends.Lease{l}}}})
			}
			if r, err := ack(lost); !errors.Is(err, backends.ErrUnknownOutcome) {
				t.Errorf("the ack that the crash took: %+v, %v, want an unknown outcome", r, err)
			}
			if r, err := ack(lost); err != nil || len(r.Writes[0].Lost) != 0 {
				t.Errorf("the same ack, sent again: %+v, %v", r, err)
			}
			// The crash is over: the Store can find out the outcome of later failures again.
			s.loseCommit(false)
			if r, err := ack(backends.Lease{Job: jobs[1].ID, Token: jobs[1].Token}); err != nil || len(r.Writes[0].Lost) != 0 {
				t.Errorf("an ack whose answer was lost: %+v, %v", r, err)
			}
			if left := peek(t, s, 10); len(left) != 0 {
				t.Errorf("%d jobs are left", len(left))
			}
		})
	}
}

// crashAndReuse crashes the server during its only open transaction, and
// commits transactions until one has its number.
func crashAndReuse(t *testing.T, p *testserver.Postgres, writer int) {
	ctx := testwait.Context(t)
	c, err := pgx.Connect(ctx, p.Admin())
	if err != nil {
		t.Error(err)
		return
	}
	var xid string
	err = c.QueryRow(ctx, `SELECT backend_xid::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND state = 'idle in transaction'`).Scan(&xid)
	if err == nil {
		err = errors.Join(c.Close(ctx), crash(t, p, writer))
	}
	if err == nil {
		c, err = pgx.Connect(ctx, p.Admin())
	}
	if err != nil {
		t.Errorf("crashing in the midst of its transaction: %v", err)
		return
	}
	defer c.Close(ctx)
	want, err := strconv.Atoi(xid)
	for got := 0; err == nil && got < want; {
		err = c.QueryRow(ctx, `SELECT pg_current_xact_id()::text::bigint`).Scan(&got)
	}
	var status string
	if err == nil {
		err = c.QueryRow(ctx, `SELECT pg_xact_status($1::text::xid8)`, xid).Scan(&status)
	}
	if err != nil || status != "committed" {
		t.Errorf("the number %s was not given out again: it is %q, %v", xid, status, err)
	}
}
