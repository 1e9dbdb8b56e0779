// Package adopt runs own consumers of a table that another application owns beside workers that use sidecars. It kills some
// of each and checks the rows. run.go has the run, workers.go the worker processes, and consumers.go the own consumers.
package adopt

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/child"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Table is a table with its own consumers, and how to check its rows.
type Table struct {
	Name      string // name of the queue and of its own consumers
	DDL       string // creates the table with %d jobs
	Config    string // the queue's config lines
	CountOpen string // counts the rows that are not done
	// selects the remaining rows at the end: the id, the state, the worker, and t if all other
	// columns are as the own consumers leave them.
	Rows        string
	WorkerLabel func(who string) string // how a row shows a worker; nil: by its name
	KeepsClaims bool                    // claims of killed own consumers stay, until the run frees them
	DeletesDone bool                    // done rows are deleted
	MaxClaim    int                     // how many jobs a consumer of either kind claims at once; 0: one

	SidecarTimeout time.Duration // timeout of the sidecars that Run starts; 0: a short one
	CheckRest      func(r *Run)  // checks other traces of the run; nil: none

	Unindexed bool // every claim reads the table from its start
}

// Server is a database server. Each table gets its own database on it.
type Server struct {
	Database func(t testing.TB) string // returns a new database's URL
	Leases   string                    // the sidecars' table of identities
	Addr     string                    // address of the listener: HOST:PORT
}

// SystemE is a table on PostgreSQL whose consumers claim a row in one transaction and finish it in
// another.
var SystemE = Table{
	Name: "e",
	DDL: `CREATE TABLE my_queue (
		queue_item_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'processing', 'done', 'error')),
		parameters jsonb NOT NULL, request_id uuid UNIQUE, user_id bigint,
		created_dt timestamptz NOT NULL DEFAULT clock_timestamp(), finished_dt timestamptz,
		error_message text, worker_name text, result jsonb, user_context jsonb);
		CREATE INDEX ON my_queue (created_dt, queue_item_id) WHERE state = 'waiting';
		INSERT INTO my_queue (parameters) SELECT jsonb_build_object('n', n) FROM generate_series(1, %d) n;`,
	Config: `
    table: my_queue
    columns: {id: queue_item_id, payload: parameters, state: state, error: error_message, worker: worker_name,
              created_at: created_dt, finished_at: finished_dt, result: result}
    states: {ready: waiting, claimed: processing, done: done, dead: error}
    order: [created_dt, queue_item_id]
`,
	CountOpen: `SELECT count(*)::text FROM my_queue WHERE state <> 'done'`,
	Rows: `SELECT concat_ws(' ', queue_item_id, state, worker_name,
		finished_dt IS NOT NULL AND error_message IS NULL AND result IS NULL) FROM my_queue`,
}

// Run is the state of a run.
type Run struct {
	Table
	T       *testing.T
	s       *kit.Site
	DB      databases.OwnersDB
	sheet   string
	started int
	dead    map[string]bool // workers that were killed, or whose sidecar was killed
	own     map[string]bool // the dead workers that are own consumers
}

// Run lets own consumers and workers on sidecars process the table's jobs, kills some of each kind
// and a sidecar, and checks the rows.
func (a Table) Run(t *testing.T, h Server, jobs int) {
	s := kit.NewSite(t)
	s.URL, s.SidecarTimeout = h.Database(t), 20*time.Second // longer than a busy machine delays a heartbeat
	s.Queues = "  " + a.Name + ":" + a.Config
	r := &Run{Table: a, T: t, s: s, DB: databases.Owners(t, s.URL), sheet: filepath.Join(s.Dir, "sheet"), dead: map[string]bool{}, own: map[string]bool{}}
	r.DB.Script(fmt.Sprintf(a.DDL, jobs))
	killed, other := s.Start("a"), s.Start("b")
	// Start the workers to kill first: the jobs can run out before a later worker is up.
	own, through, held := r.startWithJob(Own, nil), r.startWithJob(Through, other), r.startWithJob(Through, killed)
	var alive []*child.Process
	for range 3 {
		alive = append(alive, r.worker(Own, nil, false), r.worker(Through, other, false))
	}
	alive = append(alive, r.worker(Through, killed, false))
	r.waitProcessed(jobs / 5)
	r.own[own.Name] = true
	r.kill(own)
	r.waitProcessed(jobs * 2 / 5)
	r.kill(through)
	r.waitProcessed(jobs * 3 / 5)
	killed.Kill()
	r.dead[alive[len(alive)-1].Name] = true
	r.kill(held)
	r.waitProcessed(jobs * 4 / 5)
	killed.Start()
	left := 0
	testwait.Until(t, "all is done but what dead consumers keep", func() bool {
		open, err := strconv.Atoi(r.DB.Texts(a.CountOpen)[0])
		if err != nil {
			t.Fatal(err)
		}
		left = open
		return open == 0 || !a.KeepsClaims && open <= len(r.own) && len(r.ownStuck()) == open
	})
	for _, w := range alive {
		w.Stop(t)
	}
	r.checkRows(jobs, left)
	if a.CheckRest != nil {
		a.CheckRest(r)
	}
	if rows := r.DB.Texts("SELECT item FROM " + h.Leases + " WHERE token_sidecar IS NOT NULL"); len(rows) > 0 {
		t.Errorf("leases are left: %v", rows)
	}
}

// worker starts a worker. sc is its sidecar.
func (r *Run) worker(kind string, sc *kit.Sidecar, keepsJob bool) *child.Process {
	r.started++
	w := worker{Name: fmt.Sprintf("%s-%d", kind, r.started), Queue: r.Name, Database: r.s.URL, Sheet: r.sheet, Most: max(1, r.MaxClaim), KeepsJob: keepsJob}
	if sc != nil {
		w.Socket = sc.Socket
	}
	return workerModes[kind].Start(r.T, child.Options{Name: w.Name}, w)
}

// startWithJob starts a worker and waits until it has a job, which it keeps.
func (r *Run) startWithJob(kind string, sc *kit.Sidecar) *child.Process {
	r.T.Helper()
	w := r.worker(kind, sc, true)
	testwait.Until(r.T, w.Name+" is at work", func() bool {
		return slices.ContainsFunc(r.worked(), func(x sheetLine) bool { return x.who == w.Name })
	})
	return w
}

// kill kills a worker.
func (r *Run) kill(w *child.Process) {
	r.T.Helper()
	w.KillAndWait(r.T)
	r.dead[w.Name] = true
}

// waitProcessed waits until n jobs were processed.
func (r *Run) waitProcessed(n int) {
	r.T.Helper()
	kit.WaitProgress(r.T, fmt.Sprintf("%d jobs are worked", n), func() (now int, done bool) {
		now = len(r.worked())
		return now, now >= n
	})
}

func (r *Run) worked() []sheetLine {
	all, err := readWorksheet(r.sheet)
	if err != nil {
		r.T.Fatal(err)
	}
	return all
}

// ownStuck returns the rows that killed own consumers keep: they had claimed them, and no worker
// claimed them again.
func (r *Run) ownStuck() (items []string) {
	last := map[string]string{}
	for _, w := range r.worked() {
		last[w.item] = w.who
	}
	for _, row := range r.DB.Texts(r.Rows) {
		if f := strings.Fields(row); r.own[last[f[0]]] && f[2] == r.workerLabel(last[f[0]]) && f[3] == "f" {
			items = append(items, f[0])
		}
	}
	return items
}

// workerLabel returns the text with which a row names a worker.
func (r *Run) workerLabel(who string) string {
	if r.WorkerLabel == nil {
		return who
	}
	return r.WorkerLabel(who)
}

// processedAgain returns the jobs that were processed more than once, and the workers.
func (r *Run) processedAgain() map[string][]string {
	by := map[string][]string{}
	for _, w := range r.worked() {
		by[w.item] = append(by[w.item], w.who)
	}
	maps.DeleteFunc(by, func(_ string, who []string) bool { return len(who) == 1 })
	return by
}

// checkRows checks that each job was processed once, unless its first worker died, and that its row is
// as the own consumers leave it.
func (r *Run) checkRows(jobs, left int) {
	t := r.T
	last, times := map[string]string{}, map[string]int{}
	by := map[string]int{}
	for _, w := range r.worked() {
		if before, twice := last[w.item]; twice && !r.dead[before] {
			t.Errorf("the job %s was processed by %s, which is alive, and then by %s", w.item, before, w.who)
		}
		last[w.item] = w.who
		times[w.item]++
		by[strings.Split(w.who, "-")[0]]++
	}
	if again := len(r.worked()) - len(times); again > len(r.dead) {
		t.Errorf("%d jobs were worked again after the deaths of %d workers, each of whom had one: %v", again, len(r.dead), r.processedAgain())
	}
	if !r.KeepsClaims && left != 1 {
		t.Errorf("%d rows are left as its own dead consumer left them, want 1", left)
	}
	if again := len(r.worked()) - len(times); again < 2 {
		t.Errorf("%d jobs were worked again, and those of a worker and of a sidecar that died are two", again)
	}
	if len(times) < jobs-left || by[Own] == 0 || by[Through] == 0 {
		t.Errorf("%d jobs of %d were worked: %v", len(times), jobs, by)
	}
	stuck := map[string]bool{}
	for _, item := range r.ownStuck() {
		stuck[item] = true
	}
	if len(stuck) != left {
		t.Errorf("%d rows are left, and dead consumers of its own keep %v", left, stuck)
	}
	rows := r.DB.Texts(r.Rows)
	if want := map[bool]int{false: jobs, true: left}[r.DeletesDone]; len(rows) != want {
		t.Errorf("%d rows are there in the end, want %d", len(rows), want)
	}
	for _, row := range rows {
		f := strings.Fields(row)
		if stuck[f[0]] {
			continue
		}
		if f[3] != "t" || f[2] != r.workerLabel(last[f[0]]) {
			t.Errorf("the row %q, worked last by %s", row, last[f[0]])
		}
	}
	kit.Figure(t, "%d jobs, worked by its own consumers and through sidecars: %v, again %d; left by its own dead: %d", jobs, by, len(r.worked())-len(times), left)
}
