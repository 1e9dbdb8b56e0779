package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// adoption is one of the systems of issue 5: a table that has its own consumers.
type adoption struct {
	name   string // of the queue, and of its own consumers
	ddl    string // with its jobs: %d of them
	config string // the queue's, a line each
	open   string // counts the rows that are not done
	// rows are of the rows that are left at the end: the id, the state, who did it, and
	// t where all else is as its own consumers leave it.
	rows  string
	by    func(who string) string // how a row shows a worker; nil: by its name
	stuck bool                    // nothing is left of what its own consumers had: it is freed
	gone  bool                    // rows are deleted when they are done
	most  int                     // what a consumer of either kind takes at once; 0: one

	hostLease time.Duration     // of the sidecars that besideOwn starts; 0: a short one
	last      func(r *adopting) // looks at what else is left; nil: at nothing

	unindexed bool // all who claim read the table from its beginning
}

// tableServer is a database server that systems share, each in a database of its own.
type tableServer struct {
	database func(t testing.TB) string // a new one's URL
	leases   string                    // the sidecar's table of them
	addr     string                    // where it listens: HOST:PORT
}

var systemE = adoption{
	name: "e",
	ddl: `CREATE TABLE my_queue (
		queue_item_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'processing', 'done', 'error')),
		parameters jsonb NOT NULL, request_id uuid UNIQUE, user_id bigint,
		created_dt timestamptz NOT NULL DEFAULT clock_timestamp(), finished_dt timestamptz,
		error_message text, worker_name text, result jsonb, user_context jsonb);
		CREATE INDEX ON my_queue (created_dt, queue_item_id) WHERE state = 'waiting';
		INSERT INTO my_queue (parameters) SELECT jsonb_build_object('n', n) FROM generate_series(1, %d) n;`,
	config: `
    table: my_queue
    columns: {id: queue_item_id, payload: parameters, state: state, error: error_message, worker: worker_name,
              created_at: created_dt, finished_at: finished_dt, result: result}
    states: {ready: waiting, claimed: processing, done: done, dead: error}
    order: [created_dt, queue_item_id]
`,
	open: `SELECT count(*)::text FROM my_queue WHERE state <> 'done'`,
	rows: `SELECT concat_ws(' ', queue_item_id, state, worker_name,
		finished_dt IS NOT NULL AND error_message IS NULL AND result IS NULL) FROM my_queue`,
}

var systemD = adoption{
	name: "d",
	ddl: `CREATE TABLE MsgQueue (MsgId int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, MsgTypeCode char(3) NOT NULL, SourceCode varchar(10) NULL,
		State char(1) NOT NULL DEFAULT 'N', CreateTime timestamp(3) NOT NULL DEFAULT clock_timestamp(), Msg text NULL,
		ReaderCode varchar(20) NULL, TakenTime timestamp(3) NULL, DoneTime timestamp(3) NULL);
		CREATE INDEX ON MsgQueue (MsgTypeCode, State, CreateTime);
		INSERT INTO MsgQueue (MsgTypeCode, Msg) SELECT x, n FROM generate_series(1, %d) n, (VALUES ('ORD'), ('INV')) AS x (x);`,
	config: `
    table: msgqueue
    columns: {id: msgid, payload: msg, state: state, created_at: createtime, worker: readercode, claimed_at: takentime, finished_at: donetime}
    states: {ready: N, claimed: A, done: C, dead: E}
    where: {msgtypecode: ORD}
    order: [createtime]
    stuck_after: 4s
`,
	open:  `SELECT count(*)::text FROM MsgQueue WHERE MsgTypeCode = 'ORD' AND State <> 'C' OR MsgTypeCode = 'INV' AND State <> 'N'`,
	rows:  `SELECT concat_ws(' ', MsgId, State, ReaderCode, TakenTime <= DoneTime AND TakenTime >= CreateTime) FROM MsgQueue WHERE MsgTypeCode = 'ORD'`,
	stuck: true,
}

// systemELong is E whose own consumers keep one transaction open for the whole of a
// job: with the death of one its row is free.
var systemELong = func() adoption {
	long := systemE
	long.name, long.stuck = "e-long", true
	return long
}()

// TestAdoptedBesideItsOwn: each system on PostgreSQL, with workers of both kinds.
func TestAdoptedBesideItsOwn(t *testing.T) {
	_, p := newPostgresSite(t)
	h := tableServer{p.Database, "qsidecar.qsidecar_leases", p.addr}
	onTables(t, h, systemE, systemELong, systemD, systemB)
	small := smallB(h, systemB)
	small["e_removed"] = func(t *testing.T) { systemE.removed(t, h) }
	atOnce(t, small)
}

// onTables runs systems beside each other, all at once: most of a run is waiting for
// the lease of a sidecar that was killed.
func onTables(t *testing.T, h tableServer, all ...adoption) {
	runs := map[string]func(t *testing.T){}
	for _, a := range all {
		runs[a.name] = func(t *testing.T) { a.run(t, h) }
	}
	atOnce(t, runs)
}

// atOnce runs tests beside each other, however many the tests are that go test does.
func atOnce(t *testing.T, all map[string]func(t *testing.T)) {
	var wg sync.WaitGroup
	for name, f := range all {
		wg.Go(func() { t.Run(name, f) })
	}
	wg.Wait()
}

// adopting is a run under way.
type adopting struct {
	adoption
	t       *testing.T
	s       *site
	db      ownersDB
	sheet   string
	started int
	dead    map[string]bool // workers that were killed, or whose sidecar was
	own     map[string]bool // those of them that are the table's own
}

// run has own consumers and workers through sidecars work the table's jobs, kills
// some of each and a sidecar, and looks at what they leave.
func (a adoption) run(t *testing.T, h tableServer) {
	s := newSite(t)
	s.url, s.hostLease = h.database(t), 4*time.Second
	s.queues = "  " + a.name + ":" + a.config
	jobs := size(5_000)
	r := &adopting{adoption: a, t: t, s: s, db: owners(t, s.url), sheet: filepath.Join(s.dir, "sheet"), dead: map[string]bool{}, own: map[string]bool{}}
	r.db.script(fmt.Sprintf(a.ddl, jobs))
	killed, other := s.started("a"), s.started("b")
	// Those who die have their jobs from the beginning: jobs may run out before a worker is up.
	own, through, held := r.atWork(modeOwn, nil), r.atWork(modeThrough, other), r.atWork(modeThrough, killed)
	var alive []*workerProcess
	for range 3 {
		alive = append(alive, r.worker(modeOwn, nil, ""), r.worker(modeThrough, other, ""))
	}
	alive = append(alive, r.worker(modeThrough, killed, ""))
	r.after(jobs / 5)
	r.own[own.name] = true
	r.kill(own)
	r.after(jobs * 2 / 5)
	r.kill(through)
	r.after(jobs * 3 / 5)
	killed.kill()
	r.dead[alive[len(alive)-1].name] = true
	r.kill(held)
	r.after(jobs * 4 / 5)
	killed.start()
	left := 0
	eventually(t, 3*patience, "all is done but what dead consumers keep", func() bool {
		open, err := strconv.Atoi(r.db.texts(a.open)[0])
		if err != nil {
			t.Fatal(err)
		}
		left = open
		return open == 0 || !a.stuck && open <= len(r.own) && len(r.ownStuck()) == open
	})
	for _, w := range alive {
		w.stop(t)
	}
	r.judge(jobs, left)
	if a.last != nil {
		a.last(r)
	}
	if rows := r.db.texts("SELECT item FROM " + h.leases + " WHERE token_host IS NOT NULL"); len(rows) > 0 {
		t.Errorf("leases are left: %v", rows)
	}
}

// worker starts one; sc is the sidecar it goes through.
func (r *adopting) worker(mode string, sc *sidecar, holds string) *workerProcess {
	r.started++
	task := workerTask{Name: fmt.Sprintf("%s-%d", mode, r.started), Sidecar: holds, Queue: r.name, History: r.sheet, Socket: r.s.url, Most: max(1, r.most)}
	if sc != nil {
		task.Socket = sc.socket
	}
	return startWorker(r.t, mode, task, nil)
}

// atWork is a new worker that has a job, and keeps it.
func (r *adopting) atWork(mode string, sc *sidecar) *workerProcess {
	r.t.Helper()
	w := r.worker(mode, sc, keepsJob)
	eventually(r.t, patience, w.name+" is at work", func() bool {
		return slices.ContainsFunc(r.worked(), func(x worked) bool { return x.who == w.name })
	})
	return w
}

// kill kills a worker.
func (r *adopting) kill(w *workerProcess) {
	r.t.Helper()
	w.kill(r.t)
	<-w.exited
	r.dead[w.name] = true
}

// after waits until so many jobs were worked.
func (r *adopting) after(n int) {
	r.t.Helper()
	eventually(r.t, 3*patience, fmt.Sprintf("%d jobs are worked", n), func() bool { return len(r.worked()) >= n })
}

func (r *adopting) worked() []worked {
	all, err := readWorksheet(r.sheet)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// ownStuck are the rows that dead own consumers keep: they were at work on them when
// they were killed, and nobody was since.
func (r *adopting) ownStuck() (items []string) {
	last := map[string]string{}
	for _, w := range r.worked() {
		last[w.item] = w.who
	}
	for _, row := range r.db.texts(r.rows) {
		if f := strings.Fields(row); r.own[last[f[0]]] && f[2] == r.shows(last[f[0]]) && f[3] == "f" {
			items = append(items, f[0])
		}
	}
	return items
}

// shows is how a row names who has it.
func (r *adopting) shows(who string) string {
	if r.by == nil {
		return who
	}
	return r.by(who)
}

// workedAgain are the jobs that were worked more than once, and by whom.
func (r *adopting) workedAgain() map[string][]string {
	by := map[string][]string{}
	for _, w := range r.worked() {
		by[w.item] = append(by[w.item], w.who)
	}
	maps.DeleteFunc(by, func(_ string, who []string) bool { return len(who) == 1 })
	return by
}

// judge: each job was worked once, unless its first worker died, and its row is
// what its own consumers would have left.
func (r *adopting) judge(jobs, left int) {
	t := r.t
	last, times := map[string]string{}, map[string]int{}
	by := map[string]int{}
	for _, w := range r.worked() {
		if before, twice := last[w.item]; twice && !r.dead[before] {
			t.Errorf("the job %s was worked by %s, who lives, and then by %s", w.item, before, w.who)
		}
		last[w.item] = w.who
		times[w.item]++
		by[strings.Split(w.who, "-")[0]]++
	}
	if again := len(r.worked()) - len(times); again > len(r.dead) {
		t.Errorf("%d jobs were worked again after the deaths of %d workers, each of whom had one: %v", again, len(r.dead), r.workedAgain())
	}
	if !r.stuck && left != 1 {
		t.Errorf("%d rows are left as its own dead consumer left them, want 1", left)
	}
	if again := len(r.worked()) - len(times); again < 2 {
		t.Errorf("%d jobs were worked again, and those of a worker and of a sidecar that died are two", again)
	}
	if len(times) < jobs-left || by[modeOwn] == 0 || by[modeThrough] == 0 {
		t.Errorf("%d jobs of %d were worked: %v", len(times), jobs, by)
	}
	stuck := map[string]bool{}
	for _, item := range r.ownStuck() {
		stuck[item] = true
	}
	if len(stuck) != left {
		t.Errorf("%d rows are left, and dead consumers of its own keep %v", left, stuck)
	}
	rows := r.db.texts(r.rows)
	if want := map[bool]int{false: jobs, true: left}[r.gone]; len(rows) != want {
		t.Errorf("%d rows are there in the end, want %d", len(rows), want)
	}
	for _, row := range rows {
		f := strings.Fields(row)
		if stuck[f[0]] {
			continue
		}
		if f[3] != "t" || f[2] != r.shows(last[f[0]]) {
			t.Errorf("the row %q, worked last by %s", row, last[f[0]])
		}
	}
	figure(t, "%d jobs, worked by its own consumers and through sidecars: %v, again %d; left by its own dead: %d", jobs, by, len(r.worked())-len(times), left)
}
