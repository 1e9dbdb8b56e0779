package e2e

import (
	"cmp"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// staleCase is a table in which settles come too late.
type staleCase struct {
	adoption
	queue   string // whose own consumers take its rows; empty: adoption.name
	worker  string // the name of the sidecar's worker
	own     string // the name of the table's own consumer
	cleaner string // what the table's own cleaner does to the row $1
	row     string // all there is of the row $1, and which transaction wrote it
	alike   bool   // a row that its own consumer has taken looks like one of the worker's
}

func staleCases() []staleCase {
	e := staleCase{
		adoption: systemE, worker: "w", own: "own",
		cleaner: `UPDATE my_queue SET state = 'waiting', worker_name = NULL WHERE queue_item_id = $1::text::bigint AND state = 'processing'`,
		row:     `SELECT concat_ws(' ', xmin, to_jsonb(q)) FROM my_queue q WHERE queue_item_id = $1::text::bigint`,
	}
	d := staleCase{
		adoption: systemD, worker: "w", own: "own",
		cleaner: `UPDATE MsgQueue SET State = 'N', ReaderCode = NULL, TakenTime = NULL WHERE MsgId = $1::text::int AND State = 'A'`,
		row:     `SELECT concat_ws(' ', xmin, to_jsonb(q)) FROM MsgQueue q WHERE MsgId = $1::text::int`,
	}
	d.config = strings.ReplaceAll(d.config, "stuck_after: 4s", "")
	sameE, sameD, told := e, d, e
	sameE.name, sameE.queue, sameE.own, sameE.alike = "e-same-name", "e", "w", true
	sameD.name, sameD.queue, sameD.own = "d-same-name", "d", "w"
	// The same with a column that says since when: that one tells the two apart.
	told.name, told.queue, told.own = "e-started", "e-started", "w"
	told.ddl = strings.ReplaceAll(told.ddl, "finished_dt timestamptz", "started_dt timestamptz, finished_dt timestamptz")
	told.config = strings.ReplaceAll(told.config, "finished_at: ", "claimed_at: started_dt, finished_at: ")
	return []staleCase{e, sameE, told, d, sameD}
}

// TestAdoptedStale: a settle whose lease was taken back, or whose row the table's own
// cleaner has reset, is lost and changes nothing, once somebody else has the row or
// has finished it.
func TestAdoptedStale(t *testing.T) {
	_, p := newPostgresSite(t)
	for _, c := range staleCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, tableServer{p.Database, "qsidecar.qsidecar_leases", p.addr})
		})
	}
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		plainReaders(t, p.Database(t))
	})
}

// staleVerbs are what a worker may send of a lease, each without that.
var staleVerbs = map[string]msg{
	"ack":    {"op": "ack"},
	"nack":   {"op": "nack", "error": "no luck", "delay_ms": 0},
	"dead":   {"op": "nack", "error": "no luck", "dead": true},
	"give":   {"op": "nack", "charge": false},
	"extend": {"op": "extend", "lease_ms": 60_000},
	"bind":   {"op": "extend", "bind": true},
}

// staling is a run under way.
type staling struct {
	staleCase
	t  *testing.T
	db ownersDB
	c  *sql.Conn // the own consumer's
	w  *conn     // the worker's

	fill string // stores the jobs of one claim: its own consumers take whatever is ready
}

func (c staleCase) run(t *testing.T, h tableServer) {
	s := newSite(t)
	s.url, s.queues = h.database(t), "  "+c.name+":"+c.config
	r := &staling{staleCase: c, t: t, db: owners(t, s.url)}
	r.queue = cmp.Or(c.queue, c.name)
	create, fill, _ := strings.Cut(c.ddl, "INSERT")
	r.db.script(create)
	r.fill = fmt.Sprintf("INSERT"+fill, 2*len(staleVerbs))
	var err error
	if r.c, err = r.db.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer r.c.Close()
	a := s.started("a")
	r.w = a.dial()
	r.w.must(msg{"op": "hello", "worker": c.worker})

	r.refuse("reaped", r.retaken(r.claim(1000), nil)) // waits until they are free
	r.refuse("cleaned", r.retaken(r.claim(60_000), r.clean))
	other := a.dial()
	other.must(msg{"op": "hello", "worker": c.worker})
	held := r.claim(60_000)
	for _, job := range held {
		r.clean(job.ID)
	}
	jobs := other.must(msg{"op": "claim", "queue": c.name, "max": len(held)}).Jobs
	r.refuse("another worker's", held)
	for _, job := range jobs {
		other.must(msg{"op": "ack", "lease": job.Lease})
	}
	if left := r.db.texts("SELECT item FROM " + h.leases + " WHERE token_host IS NOT NULL"); len(jobs) != len(held) || len(left) > 0 {
		t.Errorf("%d jobs of %d were claimed again; leases are left: %v", len(jobs), len(held), left)
	}
}

// claim takes one job for each verb and stage; see refuse.
func (r *staling) claim(leaseMS int) []wireJob {
	r.t.Helper()
	r.db.script(r.fill)
	jobs := r.w.must(msg{"op": "claim", "queue": r.name, "max": 2 * len(staleVerbs), "lease_ms": leaseMS, "wait_ms": patience.Milliseconds()}).Jobs
	if len(jobs) != 2*len(staleVerbs) {
		r.t.Fatalf("%d jobs, want %d", len(jobs), 2*len(staleVerbs))
	}
	return jobs
}

func (r *staling) clean(item string) {
	r.t.Helper()
	done, err := r.db.ExecContext(r.t.Context(), r.cleaner, item)
	if err != nil {
		r.t.Fatal(err)
	}
	if n, err := done.RowsAffected(); err != nil || n != 1 {
		r.t.Fatalf("the cleaner changed %d rows, %v", n, err)
	}
}

// retaken has the table's own consumer take the jobs' rows, in its own words, after
// free made each ready; nil: the sidecar does. It finishes every second one, and of
// those that would look like the worker's all.
func (r *staling) retaken(jobs []wireJob, free func(item string)) []wireJob {
	r.t.Helper()
	own := staleOwn[r.queue]
	taken := map[string]bool{}
	for _, job := range jobs {
		if free != nil {
			free(job.ID)
		}
	}
	eventually(r.t, patience, "its own consumer has the rows", func() bool {
		items, err := own.take(r.t.Context(), r.c, r.own, 1)
		if deadlocked(err) {
			return false
		}
		if err != nil {
			r.t.Fatal(err)
		}
		for _, item := range items {
			taken[item] = true
			if r.alike || len(taken)%2 == 0 {
				if err := own.finish(r.t.Context(), r.c, item, r.own); err != nil {
					r.t.Fatal(err)
				}
			}
		}
		return len(taken) == len(jobs)
	})
	for _, job := range jobs {
		if !taken[job.ID] {
			r.t.Fatalf("its own consumer took %v, and not %s", taken, job.ID)
		}
	}
	return jobs
}

// refuse sends each verb for two of the jobs, which somebody else has.
func (r *staling) refuse(why string, jobs []wireJob) {
	r.t.Helper()
	// Neighbours in the order are at different stages.
	slices.SortFunc(jobs, func(a, b wireJob) int { return cmp.Compare(number(r.t, a.ID), number(r.t, b.ID)) })
	for name, verb := range staleVerbs {
		for _, job := range jobs[:2] {
			before := r.db.texts(r.row, job.ID)
			req := msg{"lease": job.Lease}
			maps.Copy(req, verb)
			if reply := r.w.ask(req); reply.Error == nil || reply.Error.Code != "lease_lost" {
				r.t.Errorf("%s, %s: answered %+v, want lease_lost", why, name, reply.Error)
			}
			if after := r.db.texts(r.row, job.ID); !slices.Equal(before, after) || len(after) != 1 {
				r.t.Errorf("%s, %s: the row was %q and is %q", why, name, before, after)
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

// staleOwn are own consumers that a process of their own has no need of.
var staleOwn = map[string]ownConsumer{
	"e": ownConsumers["e"], "d": ownConsumers["d"],
	"e-started": twoTransactions(
		`SELECT queue_item_id::text FROM my_queue WHERE state = 'waiting' ORDER BY created_dt, queue_item_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
		`UPDATE my_queue SET state = 'processing', worker_name = $2, started_dt = now() WHERE queue_item_id = $1::text::bigint`,
		`UPDATE my_queue SET state = 'done', finished_dt = now(), worker_name = $2 WHERE queue_item_id = $1::text::bigint`),
}

// plainReaders: the published SQL of system D reads a row without a lock and then
// takes it whoever has it by now. The sidecar that had it notices: at once where the
// row names its reader, and where nothing does once that reader has finished.
func plainReaders(t *testing.T, at string) {
	s := newSite(t)
	s.url = at
	s.queues = "  MsgQueue:" + strings.ReplaceAll(systemD.config, "stuck_after: 4s", "") +
		"  Bare: {table: bare, columns: {id: msgid, payload: msg, state: state, created_at: createtime}, " +
		"states: {ready: N, claimed: A, done: C}, where: {msgtypecode: ORD}, order: [createtime]}\n"
	db := owners(t, at)
	db.script(fmt.Sprintf(systemD.ddl, 2))
	db.script(`CREATE TABLE Bare (MsgId int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, MsgTypeCode char(3) NOT NULL, SourceCode varchar(10) NULL,
		State char(1) NOT NULL DEFAULT 'N', CreateTime timestamp(3) NOT NULL DEFAULT clock_timestamp(), Msg text NULL);
		INSERT INTO Bare (MsgTypeCode, Msg) VALUES ('ORD', '1'), ('ORD', '2');`)
	w := s.started("a").dial()
	for _, verb := range []msg{{"op": "ack"}, {"op": "nack", "error": "x"}} {
		readTwice(t, db, w, "MsgQueue", ", ReaderCode = 'own', TakenTime = localtimestamp", verb)
		readTwice(t, db, w, "Bare", "", verb)
	}
}

// readTwice has a plain reader and the sidecar take the same row of a queue's table,
// and then the sidecar's worker settle it. marks is what the reader writes besides.
func readTwice(t *testing.T, db ownersDB, w *conn, table, marks string, verb msg) {
	t.Helper()
	rows := func() string {
		return strings.Join(db.texts(`SELECT concat_ws(' ', xmin, to_jsonb(q)) FROM `+table+` q ORDER BY MsgId`), "\n")
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
	job := w.claimOne(table) // the row that the reader has read
	if _, err := tx.ExecContext(t.Context(), `UPDATE `+table+` SET State = 'A'`+marks+` WHERE MsgId = $1::text::int`, item); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	finish := `UPDATE ` + table + ` SET State = 'C' WHERE MsgId = ` + item + `;`
	if marks == "" {
		db.script(finish)
	}
	before := rows()
	w.refused("lease_lost", msg{"op": verb["op"], "error": verb["error"], "lease": job.Lease})
	if after := rows(); job.ID != item || after != before {
		t.Errorf("%s: the job %s, of which its own reader has %s: the rows were\n%s\nand are\n%s", table, job.ID, item, before, after)
	}
	db.script(finish)
}
