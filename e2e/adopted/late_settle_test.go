package adopted

import (
	"cmp"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// staleCase is a table with late settles.
type staleCase struct {
	adopt.Table
	queue   string // name of its own consumers in adopt.OwnConsumers; empty: adoption.name
	worker  string // name of the sidecar's worker
	own     string // name of the table's own consumer
	cleaner string // what the table's own cleaner does to the row $1
	row     string // all columns of the row $1 and the transaction that wrote it
	alike   bool   // a row of the own consumer looks like one of the worker
}

func staleCases() []staleCase {
	e := staleCase{
		Table: adopt.SystemE, worker: "w", own: "own",
		cleaner: `UPDATE my_queue SET state = 'waiting', worker_name = NULL WHERE queue_item_id = $1::text::bigint AND state = 'processing'`,
		row:     `SELECT concat_ws(' ', xmin, to_jsonb(q)) FROM my_queue q WHERE queue_item_id = $1::text::bigint`,
	}
	d := staleCase{
		Table: systemD, worker: "w", own: "own",
		cleaner: `UPDATE MsgQueue SET State = 'N', ReaderCode = NULL, TakenTime = NULL WHERE MsgId = $1::text::int AND State = 'A'`,
		row:     `SELECT concat_ws(' ', xmin, to_jsonb(q)) FROM MsgQueue q WHERE MsgId = $1::text::int`,
	}
	d.Config = strings.ReplaceAll(d.Config, "stuck_after: 20s", "")
	sameE, sameD, told := e, d, e
	sameE.Name, sameE.queue, sameE.own, sameE.alike = "e-same-name", "e", "w", true
	sameD.Name, sameD.queue, sameD.own = "d-same-name", "d", "w"
	// The same with a start time, which distinguishes the two.
	told.Name, told.queue, told.own = "e-started", "e-started", "w"
	told.DDL = strings.ReplaceAll(told.DDL, "finished_dt timestamptz", "started_dt timestamptz, finished_dt timestamptz")
	told.Config = strings.ReplaceAll(told.Config, "finished_at: ", "claimed_at: started_dt, finished_at: ")
	return []staleCase{e, sameE, told, d, sameD}
}

// TestAdoptedStale checks late settles: the lease was reclaimed, or the table's own cleaner has
// reset the row, and another consumer has claimed or finished it. The settle is lost and changes
// nothing.
func TestAdoptedStale(t *testing.T) {
	_, p := kit.NewPostgresSite(t)
	for _, c := range staleCases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.run(t, adopt.Server{Database: p.Database, Leases: "qsidecar.qsidecar_leases", Addr: p.Addr})
		})
	}
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		plainReaders(t, p.Database(t))
	})
}

// staleVerbs are the requests that a worker can send for a lease, without the lease.
var staleVerbs = map[string]kit.Msg{
	"ack":    {"op": "ack"},
	"nack":   {"op": "nack", "error": "no luck", "delay_ms": 0},
	"dead":   {"op": "nack", "error": "no luck", "dead": true},
	"give":   {"op": "nack", "snooze": true},
	"extend": {"op": "extend", "lease_ms": 600_000},
	"bind":   {"op": "extend", "bind": true},
}

// staleRun is the state of a run.
type staleRun struct {
	staleCase
	t  *testing.T
	db databases.OwnersDB
	c  *sql.Conn // the own consumer's connection
	w  *kit.Conn // the worker's connection

	fill string // stores the jobs of one claim, because own consumers claim every ready job
}

func (c staleCase) run(t *testing.T, h adopt.Server) {
	s := kit.NewSite(t)
	s.URL, s.Queues = h.Database(t), "  "+c.Name+":"+c.Config
	r := &staleRun{staleCase: c, t: t, db: databases.Owners(t, s.URL)}
	r.queue = cmp.Or(c.queue, c.Name)
	create, fill, _ := strings.Cut(c.DDL, "INSERT")
	r.db.Script(create)
	r.fill = fmt.Sprintf("INSERT"+fill, 2*len(staleVerbs))
	var err error
	if r.c, err = r.db.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer r.c.Close()
	a := s.Start("a")
	r.w = a.Dial()
	r.w.Must(kit.Msg{"op": "hello", "worker": c.worker})

	r.refuse("reaped", r.claimByOwn(r.claim(1000), nil)) // waits until they are free
	r.refuse("cleaned", r.claimByOwn(r.claim(600_000), r.clean))
	other := a.Dial()
	other.Must(kit.Msg{"op": "hello", "worker": c.worker})
	held := r.claim(600_000)
	for _, job := range held {
		r.clean(job.ID)
	}
	jobs := other.Must(kit.Msg{"op": "claim", "queue": c.Name, "max": len(held)}).Jobs
	r.refuse("another worker's", held)
	for _, job := range jobs {
		other.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	}
	if left := r.db.Texts("SELECT item FROM " + h.Leases + " WHERE token_sidecar IS NOT NULL"); len(jobs) != len(held) || len(left) > 0 {
		t.Errorf("%d jobs of %d were claimed again; leases are left: %v", len(jobs), len(held), left)
	}
}

// claim claims one job for each verb and stage: see refuse.
func (s *staleRun) claim(leaseMS int) []kit.Job {
	s.t.Helper()
	s.db.Script(s.fill)
	jobs := s.w.Must(kit.Msg{"op": "claim", "queue": s.Name, "max": 2 * len(staleVerbs), "lease_ms": leaseMS, "wait_ms": kit.WaitMS()}).Jobs
	if len(jobs) != 2*len(staleVerbs) {
		s.t.Fatalf("%d jobs, want %d", len(jobs), 2*len(staleVerbs))
	}
	return jobs
}

func (s *staleRun) clean(item string) {
	s.t.Helper()
	done, err := s.db.ExecContext(s.t.Context(), s.cleaner, item)
	if err != nil {
		s.t.Fatal(err)
	}
	if n, err := done.RowsAffected(); err != nil || n != 1 {
		s.t.Fatalf("the cleaner changed %d rows, %v", n, err)
	}
}

// claimByOwn claims the jobs' rows as the table's own consumer, with that consumer's SQL, after free made
// each row ready. If free is nil, the sidecar does. The consumer finishes every second row, and all
// rows that would look like the worker's.
func (s *staleRun) claimByOwn(jobs []kit.Job, free func(item string)) []kit.Job {
	s.t.Helper()
	own := staleOwn[s.queue]
	taken := map[string]bool{}
	for _, job := range jobs {
		if free != nil {
			free(job.ID)
		}
	}
	testwait.Until(s.t, "its own consumer has the rows", func() bool {
		items, err := own.Take(s.t.Context(), s.c, s.own, 1)
		if databases.Deadlocked(err) {
			return false
		}
		if err != nil {
			s.t.Fatal(err)
		}
		for _, item := range items {
			taken[item] = true
			if s.alike || len(taken)%2 == 0 {
				if err := own.Finish(s.t.Context(), s.c, item, s.own); err != nil {
					s.t.Fatal(err)
				}
			}
		}
		return len(taken) == len(jobs)
	})
	for _, job := range jobs {
		if !taken[job.ID] {
			s.t.Fatalf("its own consumer claimed %v, want %s", taken, job.ID)
		}
	}
	return jobs
}

// refuse sends each verb for two of the jobs, which another consumer has claimed.
func (s *staleRun) refuse(why string, jobs []kit.Job) {
	s.t.Helper()
	// Neighbours in the order are at different stages.
	slices.SortFunc(jobs, func(a, b kit.Job) int { return cmp.Compare(number(s.t, a.ID), number(s.t, b.ID)) })
	for name, verb := range staleVerbs {
		for _, job := range jobs[:2] {
			before := s.db.Texts(s.row, job.ID)
			req := kit.Msg{"lease": job.Lease}
			maps.Copy(req, verb)
			if reply := s.w.Exchange(req); reply.Error == nil || reply.Error.Code != "lease_lost" {
				s.t.Errorf("%s, %s: answered %+v, want lease_lost", why, name, reply.Error)
			}
			if after := s.db.Texts(s.row, job.ID); !slices.Equal(before, after) || len(after) != 1 {
				s.t.Errorf("%s, %s: the row was %q and is %q", why, name, before, after)
			}
		}
		jobs = jobs[2:]
	}
}

func number(t *testing.T, id string) int {
	n, err := strconv.Atoi(id)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// staleOwn are own consumers that run in the test's process.
var staleOwn = map[string]adopt.OwnConsumer{
	"e": adopt.OwnConsumers["e"], "d": adopt.OwnConsumers["d"],
	"e-started": adopt.TwoTransactions(
		`SELECT queue_item_id::text FROM my_queue WHERE state = 'waiting' ORDER BY created_dt, queue_item_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
		`UPDATE my_queue SET state = 'processing', worker_name = $2, started_dt = now() WHERE queue_item_id = $1::text::bigint`,
		`UPDATE my_queue SET state = 'done', finished_dt = now(), worker_name = $2 WHERE queue_item_id = $1::text::bigint`),
}

// plainReaders checks the published SQL of system D, which reads a row without a lock and then
// claims it, even if another consumer has claimed it in between. The sidecar that had the row finds out: at once if
// the row names its reader, otherwise when that reader has finished.
func plainReaders(t *testing.T, at string) {
	s := kit.NewSite(t)
	s.URL = at
	s.Queues = "  MsgQueue:" + strings.ReplaceAll(systemD.Config, "stuck_after: 20s", "") +
		"  Bare: {table: bare, columns: {id: msgid, payload: msg, state: state, created_at: createtime}, " +
		"states: {ready: N, claimed: A, done: C}, where: {msgtypecode: ORD}, order: [createtime]}\n"
	db := databases.Owners(t, at)
	db.Script(fmt.Sprintf(systemD.DDL, 2))
	db.Script(`CREATE TABLE Bare (MsgId int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, MsgTypeCode char(3) NOT NULL, SourceCode varchar(10) NULL,
		State char(1) NOT NULL DEFAULT 'N', CreateTime timestamp(3) NOT NULL DEFAULT clock_timestamp(), Msg text NULL);
		INSERT INTO Bare (MsgTypeCode, Msg) VALUES ('ORD', '1'), ('ORD', '2');`)
	w := s.Start("a").Dial()
	for _, verb := range []kit.Msg{{"op": "ack"}, {"op": "nack", "error": "x"}} {
		readTwice(t, db, w, "MsgQueue", ", ReaderCode = 'own', TakenTime = localtimestamp", verb)
		readTwice(t, db, w, "Bare", "", verb)
	}
}

// readTwice makes a plain reader and the sidecar claim the same row, and then the sidecar's worker
// settle it. marks is what else the reader writes.
func readTwice(t *testing.T, db databases.OwnersDB, w *kit.Conn, table, marks string, verb kit.Msg) {
	t.Helper()
	rows := func() string {
		return strings.Join(db.Texts(`SELECT concat_ws(' ', xmin, to_jsonb(q)) FROM `+table+` q ORDER BY MsgId`), "\n")
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() // does nothing after the commit
	var item string
	if err := tx.QueryRowContext(t.Context(), `SELECT MsgId::text FROM `+table+` WHERE MsgTypeCode = 'ORD' AND State = 'N' ORDER BY CreateTime, MsgId LIMIT 1`).Scan(&item); err != nil {
		t.Fatal(err)
	}
	job := w.ClaimOne(table) // the row that the reader has read
	if _, err := tx.ExecContext(t.Context(), `UPDATE `+table+` SET State = 'A'`+marks+` WHERE MsgId = $1::text::int`, item); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	finish := `UPDATE ` + table + ` SET State = 'C' WHERE MsgId = ` + item + `;`
	if marks == "" {
		db.Script(finish)
	}
	before := rows()
	w.MustFail("lease_lost", kit.Msg{"op": verb["op"], "error": verb["error"], "lease": job.Lease})
	if after := rows(); job.ID != item || after != before {
		t.Errorf("%s: the job %s, of which its own reader has %s: the rows were\n%s\nand are\n%s", table, job.ID, item, before, after)
	}
	db.Script(finish)
}
