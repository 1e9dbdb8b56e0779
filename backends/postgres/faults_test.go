package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestSessionsAreEnded has somebody end the Store's sessions all the time, at any
// moment of their transactions, and holds every answer to what is in the table.
func TestSessionsAreEnded(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: p.Database(t)})
		beat(t, s, 1)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { endSessions(ctx, t, s.o.URL) })
		k := ledger{t: t, s: s, state: map[string]fate{}}
		for i := range 300 {
			k.round(i)
		}
		stop()
		wg.Wait()
		k.check()
		t.Logf("%d commits failed, %d outcomes stayed unknown", k.failed, k.unknown)
		if k.failed+int(k.known) == 0 {
			t.Error("no session was ended in the midst of anything")
		}
	})
}

// endSessions ends one of the database's sessions every few milliseconds.
func endSessions(ctx context.Context, t *testing.T, url string) {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close(context.WithoutCancel(ctx))
	for ctx.Err() == nil {
		if _, err := c.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle' ORDER BY random() LIMIT 1`); err != nil && ctx.Err() == nil {
			t.Error(err)
			return
		}
		pause(ctx, 5*time.Millisecond+time.Duration(rand.N(20_000_000)))
	}
}

// fate is what the answers say of a job.
type fate int

const (
	stored fate = iota + 1
	acked
	unsure // an outcome stayed unknown
)

// ledger is what the answers of commits promised.
type ledger struct {
	t               *testing.T
	s               *Store
	state           map[string]fate // by payload
	held            []backends.Job
	failed, unknown int
	known           int64
}

// round stores a job, claims one and acks what the round before claimed.
func (k *ledger) round(i int) {
	payload := fmt.Sprint(i)
	b := claimBatch(1, 1, uint64(i))
	b.Writes = []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte(payload)}}}}
	var l []backends.Lease
	for _, j := range k.held {
		l = append(l, backends.Lease{Job: j.ID, Token: j.Token})
	}
	b.Writes = append(b.Writes, backends.Ack{Leases: l})
	r, err := k.s.Commit(k.t.Context(), b)
	switch {
	case err == nil:
		k.state[payload] = stored
		if len(r.Writes[1].Lost) > 0 {
			k.t.Errorf("round %d: a lease is falsely lost", i)
		}
		for _, j := range k.held {
			k.state[string(j.Payload)] = acked
		}
		k.held = r.Claims[0].Jobs
	case errors.Is(err, backends.ErrUnknownOutcome):
		k.unknown++
		k.state[payload] = unsure
		for _, j := range k.held {
			k.state[string(j.Payload)] = unsure
		}
		k.held = nil
	case backends.Retryable(err):
		k.failed++
	default:
		k.t.Errorf("round %d: %v", i, err)
	}
}

func (k *ledger) check() {
	k.t.Helper()
	if n := k.unknown; n > 0 {
		k.t.Errorf("%d outcomes were not found out, and the server was there", n)
	}
	there := map[string]int{}
	for _, state := range states {
		v, err := k.s.Peek(k.t.Context(), backends.Peek{Queue: "q", State: state, Max: 1 << 20})
		if err != nil {
			k.t.Fatal(err)
		}
		for _, j := range v {
			there[string(j.Payload)]++
		}
	}
	for payload, f := range k.state {
		want := 0
		if f == stored {
			want = 1
		}
		if f != unsure && there[payload] != want {
			k.t.Errorf("job %s: %d rows, want %d", payload, there[payload], want)
		}
		delete(there, payload)
	}
	if len(there) > 0 {
		k.t.Errorf("rows of commits that were said to have failed: %v", there)
	}
}

// TestPassedOver: a trigger that swallows a change is a refusal, never a lost
// lease or a stored job.
func TestPassedOver(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: p.Database(t)})
		beat(t, s, 1)
		must(t, s.o.URL, `CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
		swallow := func(when string) {
			must(t, s.o.URL, `DROP TRIGGER IF EXISTS swallow ON qsidecar.qsidecar_jobs;
				CREATE TRIGGER swallow BEFORE `+when+` ON qsidecar.qsidecar_jobs FOR EACH ROW EXECUTE FUNCTION swallow()`)
		}
		refused := func(what string, b backends.Batch) {
			t.Helper()
			if _, err := s.Commit(t.Context(), b); !backends.IsRefused(err) {
				t.Errorf("%s: %v, want a refusal", what, err)
			}
		}
		writes := func(w ...backends.Write) backends.Batch { return backends.Batch{Writes: w} }
		fill(t, s, 3)
		j := take(t, s, 1, 1, 1)[0]
		lease := []backends.Lease{{Job: j.ID, Token: j.Token}}

		swallow("INSERT")
		refused("enqueue", writes(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}, {Queue: "q"}}}))
		refused("enqueue with a key", writes(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: "k", KeyTTL: time.Hour}}}))
		refused("ack with a job", writes(backends.Ack{Leases: lease, Enqueue: []backends.NewJob{{Queue: "q"}}}))
		swallow("UPDATE")
		refused("claim", claimBatch(1, 2, 10))
		refused("nack", writes(backends.Nack{Leases: lease}))
		refused("extend", writes(backends.Extend{Leases: lease, Lease: time.Minute}))
		swallow("DELETE")
		refused("ack", writes(backends.Ack{Leases: lease}))
		if _, _, err := s.Command(t.Context(), backends.Command{Kind: backends.Purge, Queue: "q", State: backends.StateReady}); !backends.IsRefused(err) {
			t.Errorf("purge: %v, want a refusal", err)
		}
		must(t, s.o.URL, `DROP TRIGGER swallow ON qsidecar.qsidecar_jobs`)
		if r, err := s.Commit(t.Context(), writes(backends.Ack{Leases: lease})); err != nil || len(r.Writes[0].Lost) != 0 {
			t.Errorf("afterwards: %v, %v", r, err)
		}
	})
}

func TestErrors(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: p.Database(t)})
		write := func(j backends.NewJob) error {
			_, err := s.Commit(t.Context(), backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j}}}})
			return err
		}
		for name, j := range map[string]backends.NewJob{
			"a queue's name": {Queue: "no blanks"},
			"NUL in a key":   {Queue: "q", Key: "a\x00b"},
			"bad UTF-8":      {Queue: "q", Key: "\xff"},
			"NUL in headers": {Queue: "q", Headers: map[string]string{"a": "\x00"}},
		} {
			if err := write(j); !backends.IsRefused(err) || backends.Retryable(err) {
				t.Errorf("%s: %v, want a refusal", name, err)
			}
		}
		must(t, s.o.URL, `CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
				RAISE EXCEPTION 'not today' USING ERRCODE = 'QX001', DETAIL = 'a holiday', HINT = 'try tomorrow'; END$$;
			CREATE TRIGGER own BEFORE INSERT ON qsidecar.qsidecar_jobs FOR EACH ROW EXECUTE FUNCTION own()`)
		err := write(backends.NewJob{Queue: "q"})
		if !backends.IsRefused(err) {
			t.Errorf("a trigger's own code: %v, want a refusal", err)
		}
		for _, words := range []string{"not today", "a holiday", "try tomorrow"} {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%v does not say %q", err, words)
			}
		}
		must(t, s.o.URL, `DROP TABLE qsidecar.qsidecar_jobs CASCADE`)
		if err := write(backends.NewJob{Queue: "q"}); err == nil || backends.IsRefused(err) || backends.Retryable(err) {
			t.Errorf("without the table: %v, want neither a refusal nor retryable", err)
		}
	})
}

// TestATableLock: who locks the table makes commits wait, and their contexts end them.
func TestATableLock(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: p.Database(t)})
		tx := begun(t, s.o.URL, `LOCK TABLE qsidecar.qsidecar_jobs`)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		b := backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}
		if _, err := s.Commit(ctx, b); !backends.Retryable(err) {
			t.Errorf("%v, want retryable", err)
		}
		if _, err := s.Beat(t.Context(), backends.Beat{Host: 1, Lease: time.Minute}); err != nil {
			t.Errorf("a beat meanwhile: %v", err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Error(err)
		}
		if n := len(peek(t, s, 10)); n != 1 {
			t.Errorf("%d jobs, want the second one alone", n)
		}
	})
}

func TestTimeouts(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: p.Database(t), StatementTimeout: 2 * time.Second, ApplicationName: "mine"})
		var name string
		if err := s.pool.QueryRow(t.Context(), "SELECT current_setting('application_name')").Scan(&name); err != nil || name != "mine" {
			t.Errorf("application_name is %q, %v", name, err)
		}
		begun(t, s.o.URL, `LOCK TABLE qsidecar.qsidecar_jobs`)
		_, err := s.Commit(t.Context(), backends.Batch{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
		if !backends.Retryable(err) || !strings.Contains(err.Error(), "statement timeout") {
			t.Errorf("%v, want it retryable after the statement's timeout", err)
		}
	})
}

// TestStatus are the answers to what became of a transaction.
func TestStatus(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: p.Database(t)})
		status := func(xid string) string {
			t.Helper()
			got, err := s.status(t.Context(), xid)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		xidOf := func(tx pgx.Tx) (xid string) {
			t.Helper()
			if err := tx.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text").Scan(&xid); err != nil {
				t.Fatal(err)
			}
			return xid
		}
		done, undone, open := begun(t, s.o.URL), begun(t, s.o.URL), begun(t, s.o.URL)
		committed, aborted, ended := xidOf(done), xidOf(undone), xidOf(open)
		if err := errors.Join(done.Commit(t.Context()), undone.Rollback(t.Context())); err != nil {
			t.Fatal(err)
		}
		for xid, want := range map[string]string{committed: "committed", aborted: "aborted", "9" + committed + "00000": "aborted"} {
			if got := status(xid); got != want {
				t.Errorf("transaction %s is %q, want %q", xid, got, want)
			}
		}
		if got := status(ended); got != "in progress" {
			t.Errorf("an open transaction is %q", got)
		}
		deadline := time.Now().Add(10 * time.Second)
		for status(ended) != "aborted" { // its session was ended for it
			if time.Now().After(deadline) {
				t.Fatal("the session that was asked about goes on")
			}
		}
	})
}
