package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testsqlite"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// restore brings the database back to an older state while sidecars and workers run, and checks that
// they go on with that state.
func restore(t *testing.T, s *kit.Site, backup, restore func()) {
	early := s.Start("early")
	c := worker{t, early.Dial()}
	t.Cleanup(func() {
		if t.Failed() {
			for _, state := range []string{"ready", "scheduled", "claimed"} {
				t.Logf("%s at the end: %+v", state, early.Dial().Exchange(kit.Msg{"op": "peek", "queue": "mail", "state": state, "max": 50}))
			}
		}
	})
	before := c.enqueue("mail", "before", 20)
	held, settled := c.ClaimOne("mail"), c.ClaimOne("mail")
	c.WaitDelivered(held, settled)
	backup()

	late := s.Start("late") // the restored database doesn't have it
	d := worker{t, late.Dial()}
	c.retry(kit.Msg{"op": "ack", "lease": settled.Lease})
	d.drain("mail", 18)
	d.enqueue("mail", "after", 300)
	d.drain("mail", 50)
	leasesC, leasesD := c.claimMany("mail", 20), d.claimMany("mail", 20) // new jobs get their ids after the restore
	d.drain("mail", 210)
	d.Enqueue("mail", 3000)
	d.drain("mail", 3000) // cursors pass all positions of the backup
	restore()

	if again := c.enqueue("mail", "before", 1); again[0] != before[0] {
		t.Errorf("the key of job %s returned the new job %s", before[0], again[0])
	}
	// Jobs with the ids of leases from before the restore. A transaction that is repeated uses up ids, and the first one
	// of each connection is repeated: its number of the last commit is of another time.
	var after []string
	reused := func(leases []kit.Job) int {
		return slices.IndexFunc(leases, func(j kit.Job) bool { return slices.Contains(after, j.ID) })
	}
	for n := 0; n < 1000 && (reused(leasesC) < 0 || reused(leasesD) < 0); n++ {
		after = append(after, c.enqueue("mail", fmt.Sprint("after", n, "-"), 1)...)
	}
	if reused(leasesC) < 0 || reused(leasesD) < 0 {
		t.Fatalf("no new jobs have the ids of leases from before the restore, so the test shows nothing: %v", after)
	}
	oldC, oldD := leasesC[reused(leasesC)], leasesD[reused(leasesD)]
	for _, id := range before {
		if slices.Contains(after, id) {
			t.Errorf("a new job has the id %s of a job of the backup", id)
		}
	}
	done, stale, last := map[string]bool{}, 0, 0
	// early still has the lease of a claim of the backup, unless it was restarted for longer than the timeout.
	switch e := c.settle(held); {
	case e == nil:
		done[held.ID] = true
	case e.Code != "lease_lost":
		t.Errorf("the ack of a claim of the backup: %v", e)
	}
	for len(done) < 20+len(after) {
		job := d.claim("mail")
		for _, old := range []kit.Job{oldC, oldD} {
			if e := c.settle(old); e == nil || e.Code != "lease_lost" {
				t.Fatalf("the ack of a lease from before the restore got %v, want lease_lost", e)
			}
		}
		switch e := d.settle(job); {
		case e != nil && e.Code == "lease_lost": // late had prefetched it before the restore
			stale++
		case e != nil:
			t.Fatalf("the ack of job %s: %v", job.ID, e)
		case done[job.ID]:
			t.Fatalf("job %s was acked twice", job.ID)
		default:
			done[job.ID] = true
			if slices.Contains(before, job.ID) && job.ID != settled.ID {
				last = len(done)
			}
		}
	}
	kit.Figure(t, "%d jobs handed out that were prefetched before the restore; the last ready job of the backup was number %d", stale, last)
	if n := c.Stats("mail").Total(); n != 0 {
		t.Errorf("%d jobs are left, want none", n)
	}
}

// worker is a worker that repeats what a restore interrupts.
type worker struct {
	*testing.T
	*kit.Conn
}

// try repeats a request until it gets no error that a restore explains.
func (w worker) try(req kit.Msg) (r *kit.Reply) {
	for {
		if r = w.Exchange(req); r.Error == nil || !r.Error.Transient() {
			return r
		}
		kit.Pace()
	}
}

func (w worker) retry(req kit.Msg) *kit.Reply {
	r := w.try(req)
	if r.Error != nil {
		w.Fatalf("%s: %v", kit.Brief(req), r.Error)
	}
	return r
}

func (w worker) settle(job kit.Job) *kit.Error {
	return w.try(kit.Msg{"op": "ack", "lease": job.Lease}).Error
}

// claim waits for a job. A restore must not keep jobs from being found.
func (w worker) claim(queue string) (job kit.Job) {
	w.Helper()
	testwait.Until(w.T, "a job of "+queue, func() bool {
		r := w.retry(kit.Msg{"op": "claim", "queue": queue, "wait_ms": 1000})
		if len(r.Jobs) > 0 {
			job = r.Jobs[0]
		}
		return len(r.Jobs) > 0
	})
	return job
}

// claimMany claims n jobs.
func (w worker) claimMany(queue string, n int) (jobs []kit.Job) {
	for len(jobs) < n {
		jobs = append(jobs, w.retry(kit.Msg{"op": "claim", "queue": queue, "max": n - len(jobs), "wait_ms": kit.WaitMS()}).Jobs...)
	}
	return jobs
}

// drain claims and acks n jobs.
func (w worker) drain(queue string, n int) {
	for n > 0 {
		var leases []string
		for _, j := range w.claimMany(queue, min(n, 100)) {
			leases = append(leases, j.Lease)
		}
		w.retry(kit.Msg{"op": "ack", "leases": leases})
		n -= len(leases)
	}
}

// enqueue stores jobs with keys, and returns their ids.
func (w worker) enqueue(queue, key string, n int) (ids []string) {
	var jobs []kit.Msg
	for i := range n {
		jobs = append(jobs, kit.Msg{"queue": queue, "payload": key, "key": fmt.Sprint(key, i)})
	}
	for _, j := range w.retry(kit.Msg{"op": "enqueue", "jobs": jobs}).Jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// server is a server whose data directory can be brought back, as a snapshot of a volume is.
type server interface {
	Halt() error
	Restart(ctx context.Context) error
	Snapshot() error
	RollBack() error
}

// restoreFiles runs restore with the data directory.
func restoreFiles(t *testing.T, s *kit.Site, p server) {
	while := func(f func() error) func() {
		return func() {
			if err := errors.Join(p.Halt(), f(), p.Restart(testwait.Context(t))); err != nil {
				t.Fatal(err)
			}
		}
	}
	restore(t, s, while(p.Snapshot), while(p.RollBack))
}

func TestRestorePostgresFiles(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	restoreFiles(t, s, p)
}

// TestRestorePostgresRows restores the rows in place, as a script of pg_dump with TRUNCATE does.
func TestRestorePostgresRows(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	run := func(script string) {
		if err := testserver.RunScript(t.Context(), p.URL, script); err != nil {
			t.Fatal(err)
		}
	}
	tables := func() []string {
		return p.Query(p.URL, "SELECT tablename::text FROM pg_tables WHERE schemaname = 'qsidecar'")
	}
	script := ""
	restore(t, s, func() {
		run("CREATE SCHEMA backup;")
		for _, table := range tables() {
			run(fmt.Sprintf("CREATE TABLE backup.%[1]s AS TABLE qsidecar.%[1]s;", table))
			columns := p.Query(p.URL, "SELECT string_agg(quote_ident(column_name), ',') FROM information_schema.columns WHERE table_schema = 'qsidecar' AND table_name = $1 AND is_generated = 'NEVER'", table)[0]
			script += fmt.Sprintf("TRUNCATE qsidecar.%[1]s; INSERT INTO qsidecar.%[1]s (%[2]s) OVERRIDING SYSTEM VALUE SELECT %[2]s FROM backup.%[1]s;", table, columns)
		}
		for _, sequence := range p.Query(p.URL, "SELECT sequencename::text FROM pg_sequences WHERE schemaname = 'qsidecar'") {
			last := p.Query(p.URL, "SELECT last_value::text FROM qsidecar."+sequence)[0]
			script += fmt.Sprintf("SELECT setval('qsidecar.%s', %s);", sequence, last)
		}
	}, func() {
		// A sidecar's transaction can have locks that the script waits for, and the other way round. The server then ends one of them.
		testwait.Until(t, "the rows are restored", func() bool {
			err := testserver.RunScript(t.Context(), p.URL, "BEGIN;"+script+"COMMIT;")
			if err != nil && !strings.Contains(err.Error(), "40P01") {
				t.Fatal(err)
			}
			return err == nil
		})
	})
}

func TestRestoreMySQLFiles(t *testing.T) {
	kit.OnMySQL(t, kit.SkipLockedKinds, func(t *testing.T, s *kit.Site, p *databases.MySQL) { restoreFiles(t, s, p) })
}

// TestRestoreMySQLRows restores the tables as mysqldump does: it drops and creates them.
func TestRestoreMySQLRows(t *testing.T) {
	kit.OnMySQL(t, kit.SkipLockedKinds, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		db := p.DB(t)
		db.SetMaxOpenConns(1)
		run := func(statement string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		copyTables := func(from, to string) {
			for _, table := range p.Query("SELECT table_name FROM information_schema.tables WHERE table_schema = '" + from + "'") {
				columns := p.Query("SELECT GROUP_CONCAT('`', column_name, '`') FROM information_schema.columns WHERE table_schema = ? AND table_name = ? AND extra NOT LIKE '%GENERATED' AND COALESCE(generation_expression, '') = ''", from, table)[0]
				run("DROP TABLE IF EXISTS " + to + "." + table)
				run("CREATE TABLE " + to + "." + table + " LIKE " + from + "." + table)
				run("INSERT INTO " + to + "." + table + " (" + columns + ") SELECT " + columns + " FROM " + from + "." + table)
			}
		}
		restore(t, s, func() { run("CREATE DATABASE backup"); copyTables("e2e", "backup") }, func() { copyTables("backup", "e2e") })
	})
}

// TestRestoreSQLite restores a copy into the open file, as `.restore` of SQLite's shell does.
func TestRestoreSQLite(t *testing.T) {
	s := kit.NewSite(t)
	file := filepath.Join(s.Dir, "backup.db")
	restore(t, s, func() { s.Exec(t, "VACUUM INTO '"+file+"'") }, func() { testsqlite.Restore(t, s.SQLite(t), file) })
}
