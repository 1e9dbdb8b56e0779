package crash

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// mostUnsettled is how many jobs a worker can have begun and not settled, if it runs 8 at once.
const mostUnsettled = 32

// TestAcksUnderWay kills the database while acks of a worker are unanswered: alone, with the worker, and with the sidecar.
// Each job is run and settled. Only jobs that were claimed and not settled are run again.
func TestAcksUnderWay(t *testing.T) {
	for name, start := range clientlib.Workers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := kit.NewPostgresSite(t)
			s.SidecarTimeout = 20 * time.Second // the jobs that a killed sidecar had prefetched wait for it
			sc := s.Start("a")
			u := &acksUnderWay{t: t, sidecar: sc, db: p, worker: start(t, sc)}
			u.holdable()
			u.worker.Start()
			// PostgreSQL loses its last claims. A worker that lives begins the jobs of claims that it got and could not begin.
			u.kill("the database", func() {}, func() {}, mostUnsettled+clientlib.WorkerJobs)
			u.kill("the database and the worker", u.worker.Kill, func() { u.worker.Start() }, mostUnsettled)
			u.kill("the database and the sidecar", sc.Kill, sc.Start, mostUnsettled+clientlib.WorkerJobs)
			u.worker.Terminate()
			if left := p.Jobs(t); len(left) > 0 {
				t.Errorf("jobs %v are left", left)
			}
		})
	}
}

// acksUnderWay is a worker whose acks the test can hold up in the database.
type acksUnderWay struct {
	t       *testing.T
	sidecar *kit.Sidecar
	db      *databases.Postgres
	worker  *clientlib.Worker
}

// holdable lets each ack share an advisory lock. Claims don't need it.
func (a *acksUnderWay) holdable() {
	a.t.Helper()
	for _, sql := range []string{
		`CREATE FUNCTION public.held() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END'`,
		`CREATE TRIGGER held BEFORE DELETE ON qsidecar.qsidecar_jobs FOR EACH STATEMENT EXECUTE FUNCTION public.held()`,
	} {
		a.db.Query(a.db.URL, sql)
	}
}

// kill lets jobs flow, holds up all acks, and kills the database while they are under way. also kills something else, and revive
// starts it again. Then at most so many jobs can run again.
func (a *acksUnderWay) kill(what string, also, revive func(), most int) {
	a.t.Helper()
	const flowing, held = 100, 100
	known, _ := a.worker.Done()
	a.put(len(known), flowing)
	a.settled()
	c := a.sidecar.Dial()
	c.Must(kit.Msg{"op": "pause", "queue": "quick"}) // until the acks are held up
	a.put(len(known)+flowing, held)
	_, before := a.worker.Done()
	ctx := testwait.Context(a.t)
	holder, err := pgx.Connect(ctx, a.db.URL)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = holder.Close(context.WithoutCancel(ctx)) }() // its server is dead
	if _, err := holder.Exec(ctx, "SELECT pg_advisory_lock(1)"); err != nil {
		a.t.Fatal(err)
	}
	c.Must(kit.Msg{"op": "resume", "queue": "quick"})
	testwait.Until(a.t, "an ack is under way", func() bool {
		waiting := a.db.Query(a.db.URL, "SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
		return len(waiting) > 0
	})
	if err := a.db.Kill9(); err != nil {
		a.t.Fatal(err)
	}
	also()
	_, begun := a.worker.Done()
	unsettled := len(begun) - len(before)
	if err := a.db.Restart(ctx); err != nil {
		a.t.Fatal(err)
	}
	revive()
	a.settled()
	all, lines := a.worker.Done()
	again := len(lines) - len(before) - held
	kit.Figure(a.t, "%s killed with %d jobs begun and not settled: %d ran again", what, unsettled, again)
	if want := len(known) + flowing + held; len(all) != want {
		a.t.Errorf("%s killed: %d jobs have run, want %d", what, len(all), want)
	}
	if unsettled < 1 || unsettled > mostUnsettled {
		a.t.Errorf("%s killed with %d jobs begun and not settled, want 1 to %d", what, unsettled, mostUnsettled)
	}
	if again > most {
		a.t.Errorf("%s killed: %d jobs ran again, want %d at most", what, again, most)
	}
}

// put enqueues n jobs with payloads from a number on.
func (a *acksUnderWay) put(from, n int) {
	a.t.Helper()
	jobs := make([]kit.Msg, n)
	for i := range jobs {
		jobs[i] = kit.Msg{"queue": "quick", "payload": fmt.Sprint(from + i)}
	}
	a.sidecar.Dial().Must(kit.Msg{"op": "enqueue", "jobs": jobs})
}

// settled waits until no job is left in any state.
func (a *acksUnderWay) settled() {
	a.t.Helper()
	c := a.sidecar.Dial()
	kit.WaitProgress(a.t, "no job is left", func() (now int, done bool) {
		r := c.Exchange(kit.Msg{"op": "stats", "queue": "quick"})
		if r.Error != nil && !r.Error.Transient() {
			a.t.Fatal(r.Error)
		}
		for _, q := range r.Queues {
			now = q.Total()
		}
		return now, r.Error == nil && now == 0
	})
}
