package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestSessionsAreEnded ends a session of the Store every few requests, before, during
// or after the request, and compares every answer with the table.
func TestSessionsAreEnded(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.WithoutCancel(t.Context()))
		w, through := newWire(t, url)
		w.end = func(pid uint32) {
			var there bool
			for there = true; there; {
				if err := c.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE pid = $1`, int32(pid)).Scan(&there); err != nil {
					t.Error(err)
					return
				}
			}
		}
		s := open(t, Options{URL: through})
		beat(t, s, 1)
		k := ledger{t: t, s: s, state: map[string]fate{}}
		const requests = 7 // more than a commit and its second try need
		for i := range int(moments) * requests {
			w.arm(i%requests+1, moment(i/requests))
			k.round(2 * i)
			k.round(2*i + 1)
			w.arm(0, 0)
		}
		k.check()
		w.mu.Lock()
		ended := w.ended
		w.mu.Unlock()
		t.Logf("%d sessions were ended, %d commits failed", ended, k.failed)
		if ended < 2*int(moments) {
			t.Errorf("only %d sessions were ended", ended)
		}
	})
}

// fate is a job's state according to the answers.
type fate int

const (
	stored fate = iota + 1
	acked
	unsure // an outcome stayed unknown
)

// ledger records what the answers of commits promised.
type ledger struct {
	t               *testing.T
	s               *Store
	state           map[string]fate // by payload
	held            []backends.Job
	failed, unknown int
}

// round stores a job, claims one, and acks the jobs that the previous round claimed.
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
		k.t.Errorf("rows of commits that reported a failure: %v", there)
	}
}

// TestPassedOver: a trigger that suppresses a change makes the Store refuse it. The Store never
// reports a lost lease or a stored job.
func TestPassedOver(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		beat(t, s, 1)
		must(t, s.o.URL, `CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
		swallow := func(when string) {
			must(t, s.o.URL, `DROP TRIGGER IF EXISTS swallow ON qsidecar.qsidecar_jobs;
				CREATE TRIGGER swallow BEFORE `+when+` ON qsidecar.qsidecar_jobs FOR EACH ROW EXECUTE FUNCTION swallow()`)
		}
		refused := func(what string, b backends.CommitContent) {
			t.Helper()
			r, err := s.Commit(t.Context(), b)
			if all := s.Obstacles(); err == nil && len(b.Claims) > 0 && len(r.Claims[0].Jobs) == 0 && len(all) > 0 {
				err = all[0].Err
			}
			if !backends.IsRefused(err) {
				t.Errorf("%s: %v, want a refusal", what, err)
			}
		}
		writes := func(w ...backends.Write) backends.CommitContent { return backends.CommitContent{Writes: w} }
		fill(t, s, 3)
		j := take(t, s, 1, 1, 1)[0]
		lease := []backends.Lease{{Job: j.ID, Token: j.Token}}
		ready := peekOne(t, s, backends.StateReady)

		swallow("INSERT")
		refused("enqueue", writes(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}, {Queue: "q"}}}))
		refused("enqueue with a key", writes(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Key: "k", KeyTTL: time.Hour}}}))
		refused("ack with a job", writes(backends.Ack{Leases: lease, Enqueue: []backends.NewJob{{Queue: "q"}}}))
		swallow("UPDATE")
		refused("claim", claimBatch(1, 2, 10))
		refused("nack", writes(backends.Nack{Leases: lease}))
		refused("extend", writes(backends.Extend{Leases: lease, Lease: time.Minute}))
		for _, id := range []string{j.ID, ready} {
			if n, _, err := s.Command(t.Context(), backends.Command{Kind: backends.Cancel, Queue: "q", IDs: []string{id}}); !backends.IsRefused(err) || n > 0 {
				t.Errorf("cancel of %s: %d, %v, want a refusal", id, n, err)
			}
		}
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

func peekOne(t *testing.T, s *Store, state backends.State) string {
	t.Helper()
	v, err := s.Peek(t.Context(), backends.Peek{Queue: "q", State: state, Max: 1})
	if err != nil || len(v) != 1 {
		t.Fatalf("peek: %v, %v", v, err)
	}
	return v[0].ID
}

func TestErrors(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		write := func(j backends.NewJob) error {
			_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{j}}}})
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

// TestATableLock: a program that locks the table makes commits wait until their contexts end.
func TestATableLock(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		tx := begun(t, s.o.URL, `LOCK TABLE qsidecar.qsidecar_jobs`)
		ctx, cancel := context.WithCancel(t.Context())
		b := backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}}
		answer := make(chan error, 1)
		go func() {
			_, err := s.Commit(ctx, b)
			answer <- err
		}()
		sees(t, s.o.URL, "the commit waits for the lock", waitsFor(""))
		cancel()
		if err := testwait.Receive(t, "the commit's answer", answer); !backends.Retryable(err) {
			t.Errorf("%v, want retryable", err)
		}
		if _, err := s.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: 1, Timeout: time.Minute}); err != nil {
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
		s := open(t, Options{URL: filled(t, p), StatementTimeout: time.Hour, ApplicationName: "mine"})
		var name, timeout string
		if err := s.pool.QueryRow(t.Context(), "SELECT current_setting('application_name'), current_setting('statement_timeout')").Scan(&name, &timeout); err != nil || name != "mine" || timeout != "1h" {
			t.Errorf("application_name is %q, statement_timeout %q, %v", name, timeout, err)
		}
		begun(t, s.o.URL, `LOCK TABLE qsidecar.qsidecar_jobs`)
		s.o.StatementTimeout = 100 * time.Millisecond // of later sessions, and also limits waits for locks
		s.pool.Reset()
		_, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}}})
		if !backends.Retryable(err) || !strings.Contains(err.Error(), "statement timeout") {
			t.Errorf("%v, want it retryable after the statement's timeout", err)
		}
	})
}

// TestStatus checks the answers about the outcome of a transaction.
func TestStatus(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		s := open(t, Options{URL: filled(t, p)})
		ask := func(xid string) string {
			t.Helper()
			got, err := s.ask(t.Context(), xid)
			if err != nil || got.standby || !succeeds(got.epoch, got.epoch) {
				t.Fatalf("%+v, %v", got, err)
			}
			return got.status
		}
		xidOf := func(tx pgx.Tx) (xid string) {
			t.Helper()
			if err := tx.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text").Scan(&xid); err != nil {
				t.Fatal(err)
			}
			return xid
		}
		done, undone, open := begun(t, s.o.URL), begun(t, s.o.URL), begun(t, s.o.URL)
		committed, aborted, ongoing := xidOf(done), xidOf(undone), xidOf(open)
		if err := errors.Join(done.Commit(t.Context()), undone.Rollback(t.Context())); err != nil {
			t.Fatal(err)
		}
		for xid, want := range map[string]string{committed: "committed", aborted: "aborted", ongoing: "in progress", "9" + committed + "00000": statusFuture} {
			if got := ask(xid); got != want {
				t.Errorf("transaction %s is %q, want %q", xid, got, want)
			}
		}
		epoch, err := s.readEpoch(t.Context(), s.pool)
		if err != nil {
			t.Fatal(err)
		}
		err = s.findOut(testwait.Context(t), &tx{status: txStatus{xid: ongoing}, epoch: epoch}, errors.New("the test lost it"))
		if !backends.Retryable(err) || ask(ongoing) != "aborted" {
			t.Errorf("the open transaction was not ended: %v", err)
		}
	})
}

// TestMeaning: which answers the Store relies on.
func TestMeaning(t *testing.T) {
	const epoch = "700/0000000A/then/1"
	for _, c := range []struct {
		a     asked
		epoch string
		want  meaning
	}{
		{asked{false, epoch, "committed"}, epoch, happened},
		{asked{false, epoch, "aborted"}, epoch, neverHappened},
		{asked{false, epoch, "in progress"}, epoch, stillOpen},
		{asked{false, epoch, ""}, epoch, unknowable},
		{asked{false, "", "aborted"}, epoch, noEpoch},
		// It was started again, with these or older files.
		{asked{false, "700/0000000A/then/2", "aborted"}, epoch, neverHappened},
		{asked{false, "700/0000000A/then/2", "in progress"}, epoch, neverHappened}, // another transaction, which must not be ended
		{asked{false, "700/0000000A/then/2", "committed"}, epoch, unknowable},
		// It crashed, or a standby took over.
		{asked{false, "700/0000000A/now/2", "aborted"}, epoch, neverHappened},
		{asked{false, "700/0000000B/now/2", statusFuture}, epoch, neverHappened},
		{asked{false, "700/0000000B/now/2", "in progress"}, epoch, neverHappened},
		{asked{false, "700/0000000B/now/2", "committed"}, epoch, unknowable},
		// A standby, an old primary, and another server.
		{asked{true, "", statusFuture}, epoch, undecided},
		{asked{true, epoch, "aborted"}, epoch, undecided},
		{asked{false, "700/00000009/now/2", statusFuture}, epoch, undecided},
		{asked{false, "701/0000000A/now/2", statusFuture}, epoch, unknowable},
		{asked{false, "701/0000000B/now/2", "aborted"}, epoch, unknowable},
		// A server that does not reveal its identity, and a session that found no epoch.
		{asked{false, "now/1", "aborted"}, "then/1", unknowable},
		{asked{false, "then/1", "aborted"}, "then/1", neverHappened},
		{asked{false, "then/2", "aborted"}, "then/1", neverHappened},
		{asked{false, "then/2", "committed"}, "then/1", unknowable},
		{asked{false, epoch, "aborted"}, "", unknowable},
	} {
		if got := c.a.meaning(c.epoch); got != c.want {
			t.Errorf("%+v after %q means %d, want %d", c.a, c.epoch, got, c.want)
		}
	}
}
