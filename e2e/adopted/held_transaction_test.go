package adopted

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// systemB is a table whose consumers keep a transaction open during the whole job. Nothing in a row
// shows that it is claimed.
var systemB = adopt.Table{
	Name: "b",
	DDL: `CREATE TABLE worker_queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, command text NOT NULL,
		is_done boolean NOT NULL DEFAULT FALSE, failure_count smallint NOT NULL DEFAULT 0);
		INSERT INTO worker_queue (command) SELECT n FROM generate_series(1, %d) n;`,
	Config: `
    table: worker_queue
    columns: {id: id, payload: command, state: is_done, attempts: failure_count}
    states: {ready: false, done: true}
    max_attempts: 3
    claim_mode: transaction
`,
	CountOpen:   `SELECT count(*) FROM worker_queue WHERE NOT is_done`,
	Rows:        `SELECT concat_ws(' ', id, 'done', '-', CASE WHEN is_done THEN 't' ELSE 'f' END) FROM worker_queue`,
	WorkerLabel: func(string) string { return "-" },
	KeepsClaims: true, Unindexed: true,
	CheckRest: func(r *adopt.Run) {
		// One of the killed workers had a sidecar that survived, so its job failed. The jobs of the
		// killed own consumer and of the killed sidecar are unchanged.
		if got := r.DB.Texts(`SELECT concat(sum(failure_count), '') FROM worker_queue`); got[0] != "1" {
			r.T.Errorf("the failures of all rows are %v, want 1", got)
		}
	},
}

var systemBOnMySQL = func() adopt.Table {
	b := systemB
	b.DDL = `CREATE TABLE worker_queue (id BIGINT AUTO_INCREMENT PRIMARY KEY, command TEXT NOT NULL,
		is_done BOOLEAN NOT NULL DEFAULT FALSE, failure_count SMALLINT NOT NULL DEFAULT 0);
		INSERT INTO worker_queue (command) WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d) SELECT n FROM s;`
	return b
}()

// newest is system B with the newest job first.
func newest(a adopt.Table) adopt.Table {
	a.Name, a.Config = "b_lifo", a.Config+"    order: lifo\n"
	return a
}

func init() {
	adopt.OwnConsumers["b"] = holdingOwn("id")
	adopt.OwnConsumers["b_lifo"] = holdingOwn("id DESC")
}

// holdingOwn returns the consumers of system B. Success sets is_done, a failure increments
// failure_count.
func holdingOwn(order string) adopt.OwnConsumer {
	take := `SELECT id FROM worker_queue WHERE failure_count < 3 AND is_done = FALSE ORDER BY ` + order + ` LIMIT 1 FOR UPDATE SKIP LOCKED`
	own := adopt.OneTransaction(take, "")
	own.Finish = func(ctx context.Context, c *sql.Conn, item, _ string) error {
		for _, statement := range []string{
			`UPDATE worker_queue SET is_done = TRUE WHERE command NOT LIKE 'bad%' AND id = ` + item,
			`UPDATE worker_queue SET failure_count = failure_count + 1 WHERE command LIKE 'bad%' AND id = ` + item,
			"COMMIT",
		} {
			if _, err := c.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	}
	return own
}

// smallTestsOfB are the checks that the run with kills does not include.
func smallTestsOfB(h adopt.Server, b adopt.Table) map[string]func(t *testing.T) {
	return map[string]func(t *testing.T){
		"b_oldest":  func(t *testing.T) { checkOrderOfB(t, h, b, false) },
		"b_newest":  func(t *testing.T) { checkOrderOfB(t, h, newest(b), true) },
		"b_letters": func(t *testing.T) { checkDeadJobsOfB(t, h, b) },
		"b_ends":    func(t *testing.T) { checkLeaseEndsOfB(t, h, b) },
		"b_bounds":  func(t *testing.T) { checkLimitsOfB(t, h, b) },
		"b_page":    func(t *testing.T) { checkPageB(t, h, b) },
		"b_reloads": func(t *testing.T) { checkReloadsOfB(t, h, b) },
		"b_changes": func(t *testing.T) { checkWorkDuringReloadsOfB(t, h, b) },
		"b_removed": func(t *testing.T) { removed(b, t, h) },
		"b_vanish":  func(t *testing.T) { checkVanishedHostOfB(t, h, b) },
	}
}

// checkPageB runs the page's example.
func checkPageB(t *testing.T, h adopt.Server, a adopt.Table) {
	e := pageExample(t, "A transaction for the whole of the work")
	b := e.table(t, h, a, 3)
	run := func(statement, id string) {
		t.Helper()
		if _, err := b.c.ExecContext(t.Context(), strings.ReplaceAll(statement, "?", id)); err != nil {
			t.Fatal(err)
		}
	}
	for i, end := range e.sql[2:4] { // done, failed
		run(e.sql[0], "")
		var id, command string
		if err := b.c.QueryRowContext(t.Context(), e.sql[1]).Scan(&id, &command); err != nil || command != fmt.Sprint(2*i+1) {
			t.Fatal(id, command, err)
		}
		if i == 0 {
			b.w.Must(kit.Msg{"op": "ack", "lease": b.claim(1)[0].Lease})
		}
		run(end, id)
		run(e.sql[4], "")
	}
	b.w.Must(kit.Msg{"op": "nack", "lease": b.claim(1)[0].Lease, "error": "no luck"})
	b.same("the rows", b.db.Texts(`SELECT concat_ws(' ', id, CASE WHEN is_done THEN 't' ELSE 'f' END, failure_count) FROM worker_queue ORDER BY id`), "1 t 0", "2 t 0", "3 f 2")
}

// checkOrderOfB claims rows one by one, in turns by the own SQL and through the sidecar, and checks the
// order of ids (or the reverse).
func checkOrderOfB(t *testing.T, h adopt.Server, a adopt.Table, newest bool) {
	b := newSharedTable(a, t, h, 12)
	var got, want []string
	for n := range 12 {
		want = append(want, fmt.Sprint(n+1))
	}
	if newest {
		slices.Reverse(want)
	}
	for range 4 {
		own := b.own("own", 1)
		got = append(append(got, own...), b.claim(1)[0].ID) // and keeps it claimed
		b.finish("own", own...)
	}
	got = append(append(got, itemsOf(b.claim(3))...), b.own("own", 1)...)
	b.same("in turns", got, want...)
	b.finish("own", got[11])
	if r, err := b.w.Call(kit.Msg{"op": "claim", "queue": b.Name}); err != nil || r.Error != nil || len(r.Jobs) > 0 {
		t.Errorf("all are taken: %+v %v", r, err)
	}
}

// checkDeadJobsOfB checks jobs that always fail, with both kinds of workers, a worker that reads dead
// jobs, and a periodic job that archives finished jobs. None of these finds a row that is being
// processed.
func checkDeadJobsOfB(t *testing.T, h adopt.Server, a adopt.Table) {
	b := newSharedTable(a, t, h, 40)
	b.db.Script(`UPDATE worker_queue SET command = concat('bad', id) WHERE id <= 8;
		CREATE TABLE letters (id bigint PRIMARY KEY); CREATE TABLE old (id bigint PRIMARY KEY, command text, is_done boolean, failure_count smallint);`)
	through := 0
	work := func() {
		r := b.w.Must(kit.Msg{"op": "claim", "queue": b.Name, "max": 2, "wait_ms": 50})
		for _, job := range r.Jobs {
			end := kit.Msg{"op": "ack", "lease": job.Lease}
			if strings.HasPrefix(job.Payload, "bad") {
				end = kit.Msg{"op": "nack", "lease": job.Lease, "delay_ms": 0, "error": "as always"}
			}
			b.w.Must(end)
			through++
		}
	}
	work() // before the own consumers start, which can leave none
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all errgroup.Group
	var own atomic.Int64
	for range 2 {
		all.Go(func() error { return b.runOwnConsumer(ctx, &own) })
	}
	all.Go(func() error {
		return b.each(ctx, `SELECT id FROM worker_queue WHERE failure_count >= 3 AND id NOT IN (SELECT id FROM letters) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED`,
			`INSERT INTO letters SELECT id FROM worker_queue WHERE failure_count >= 3 AND id = `)
	})
	all.Go(func() error {
		return b.each(ctx, `SELECT id FROM worker_queue WHERE is_done = TRUE OR failure_count >= 3 AND id IN (SELECT id FROM letters) LIMIT 1 FOR UPDATE SKIP LOCKED`,
			`INSERT INTO old SELECT * FROM worker_queue WHERE id = `, `DELETE FROM worker_queue WHERE id = `)
	})
	testwait.Until(t, "its own consumers work", func() bool { return own.Load() > 0 })
	for len(b.db.Texts(`SELECT id FROM old`)) < 40 {
		work()
	}
	stop()
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	if through == 0 || own.Load() == 0 || through+int(own.Load()) != 32+3*8 {
		t.Errorf("%d runs through the sidecar and %d of its own consumers, want %d of all 40 jobs, of which 8 fail three times", through, own.Load(), 32+3*8)
	}
	bad := b.db.Texts(`SELECT concat_ws(' ', count(*), min(failure_count), max(failure_count), count(DISTINCT l.id)) FROM old LEFT JOIN letters l ON l.id = old.id WHERE is_done = FALSE`)
	good := b.db.Texts(`SELECT concat_ws(' ', count(*), max(failure_count)) FROM old WHERE is_done = TRUE`)
	if bad[0] != "8 3 3 8" || good[0] != "32 0" || len(b.db.Texts(`SELECT id FROM worker_queue`)) > 0 {
		t.Errorf("moved: dead %v, done %v", bad, good)
	}
}

// runOwnConsumer runs an own consumer on its own connection until ctx ends.
func (b *sharedTable) runOwnConsumer(ctx context.Context, worked *atomic.Int64) error {
	own := adopt.OwnConsumers[b.Name]
	return b.with(ctx, func(c *sql.Conn) (bool, error) {
		items, err := own.Take(ctx, c, "own", 1)
		if err != nil || len(items) == 0 {
			return false, err
		}
		if err := own.Finish(ctx, c, items[0], "own"); err != nil {
			return false, err
		}
		worked.Add(1)
		return true, nil
	})
}

// each locks a row that a query finds, and runs statements with its id as the last argument.
func (b *sharedTable) each(ctx context.Context, find string, do ...string) error {
	own := adopt.OneTransaction(find, "")
	return b.with(ctx, func(c *sql.Conn) (bool, error) {
		items, err := own.Take(ctx, c, "", 1)
		if err != nil || len(items) == 0 {
			return false, err
		}
		for _, statement := range do {
			if _, err := c.ExecContext(ctx, statement+items[0]); err != nil {
				return false, err
			}
		}
		_, err = c.ExecContext(ctx, "COMMIT")
		return true, err
	})
}

// with calls f repeatedly until ctx ends. If f found nothing, it waits a moment first. It repeats f
// after a deadlock.
func (b *sharedTable) with(ctx context.Context, f func(c *sql.Conn) (found bool, err error)) error {
	c, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for ctx.Err() == nil {
		found, err := f(c)
		if err != nil && !databases.Deadlocked(err) && !errors.Is(err, context.Canceled) && ctx.Err() == nil {
			return err
		}
		if !found {
			kit.Pace()
		}
	}
	return nil
}
