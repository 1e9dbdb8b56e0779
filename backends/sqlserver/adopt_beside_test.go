package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// The T-SQL of the readers of system D: the published form, and the one that checks for locks, as the page of package
// adopted shows it.
const (
	readLocked = `SET NOCOUNT ON;
DECLARE @id int;
BEGIN TRANSACTION;
SELECT TOP (1) @id = m.[MsgId]
FROM [dbo].[MsgQueue] AS m WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE m.[MsgTypeCode] = 'ORD' AND m.[State] = 'N'
ORDER BY m.[CreateTime];
UPDATE [dbo].[MsgQueue] SET [State] = 'A', [ReaderCode] = 'own', [TakenTime] = GETDATE() WHERE [MsgId] = @id;
COMMIT TRANSACTION;
SELECT @id AS id;`
	readPlain   = `UPDATE [dbo].[MsgQueue] SET [State] = 'A', [ReaderCode] = 'own', [TakenTime] = GETDATE() WHERE [MsgId] = @id;`
	readDone    = `UPDATE [dbo].[MsgQueue] SET [State] = 'C', [DoneTime] = GETDATE() WHERE [MsgId] = @id;`
	readWritten = `INSERT INTO [dbo].[MsgQueue] ([MsgTypeCode], [Msg]) VALUES ('ORD', @text);`
	readCount   = `SELECT COUNT_BIG(*) AS n FROM [dbo].[MsgQueue] AS m WHERE m.[State] = 'C' AND m.[MsgTypeCode] = 'ORD' AND m.[TakenTime] IS NOT NULL AND m.[DoneTime] IS NOT NULL;`
)

// besideReaders shows that half of the workers can be the table's own readers, in their own
// T-SQL. Every message is worked once, and the rows end as those readers would leave them.
func (a *adopter) besideReaders(db *sql.DB, messages int) {
	a.Helper()
	exec := func(text string, arg sql.NamedArg) {
		a.Helper()
		if _, err := db.ExecContext(a.Context(), text, arg); err != nil {
			a.Fatalf("%s: %v", text, err)
		}
	}
	for n := range messages {
		exec(readWritten, sql.Named("text", fmt.Sprint(n)))
	}
	var mu sync.Mutex
	worked := map[string][]string{}
	note := func(id, who string) {
		mu.Lock()
		defer mu.Unlock()
		worked[id] = append(worked[id], who)
	}
	// Batches have a statement for each number of jobs. The workers below claim one each, so that
	// the emulator meets the same statements in every run.
	two := a.claim("orders", 2, 0)
	for _, j := range two {
		note(j.ID, "sidecar")
	}
	a.write(backends.Ack{Leases: leasesOf(two...)}, 0)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range 2 {
		wg.Go(func() {
			for errs[i] == nil {
				var id sql.NullInt64
				if errs[i] = again1205(func() error { return db.QueryRowContext(a.Context(), readLocked).Scan(&id) }); errs[i] != nil || !id.Valid {
					return
				}
				note(fmt.Sprint(id.Int64), "own")
				_, errs[i] = db.ExecContext(a.Context(), readDone, sql.Named("id", id.Int64))
			}
		})
		wg.Go(func() { errs[2+i] = a.workAll(note) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		a.Fatal(err)
	}
	kinds := map[string]int{}
	for id, who := range worked {
		kinds[who[0]]++
		if len(who) != 1 {
			a.Errorf("the message %s was worked by %v", id, who)
		}
	}
	done := 0
	if err := db.QueryRowContext(a.Context(), readCount).Scan(&done); err != nil || done != messages || len(worked) != messages {
		a.Errorf("%d messages, %d worked, %d done, %v", messages, len(worked), done, err)
	}
	a.Logf("worked by: %v", kinds)
	// The published form takes a job that a sidecar has claimed. The sidecar notices.
	exec(readWritten, sql.Named("text", "raced"))
	raced := a.one("orders")
	var id int
	if _, err := fmt.Sscan(raced.ID, &id); err != nil {
		a.Fatal(err)
	}
	exec(readPlain, sql.Named("id", id))
	a.write(backends.Ack{Leases: leasesOf(raced)}, 1)
}

// again1205 retries after a deadlock, as the table's own readers do.
func again1205(f func() error) error {
	for try := 0; ; try++ {
		if err := f(); err == nil || try == 20 || whenAgain(err) != soon {
			return err
		}
	}
}

// workAll claims and acks until no job is left.
func (a *adopter) workAll(note func(id, who string)) error {
	for {
		c := backends.Claim{Queues: []backends.Policy{{Queue: "orders", MaxAttempts: 3}}, Slots: []backends.Slot{a.slot(0)}}
		r, err := a.Commit(a.Context(), backends.CommitContent{Sidecar: me, Claims: []backends.Claim{c}})
		if err != nil || len(r.Claims[0].Jobs) == 0 {
			return err
		}
		for _, j := range r.Claims[0].Jobs {
			note(j.ID, "sidecar")
		}
		ack := []backends.Write{backends.Ack{Leases: leasesOf(r.Claims[0].Jobs...)}}
		r, err = a.Commit(a.Context(), backends.CommitContent{Writes: ack})
		for err == nil && r.Writes[0].Err != nil { // a reader has the row locked for a moment
			r, err = a.Commit(a.Context(), backends.CommitContent{Writes: ack, WaitForLocks: true})
		}
		if err == nil && len(r.Writes[0].Lost) > 0 {
			err = fmt.Errorf("lost: %v", r.Writes[0].Lost)
		}
		if err != nil {
			return err
		}
	}
}

// TestAdoptedBesideReaders runs system D by emulation. TestAdoptedOnSQLServer shows whether its
// locks hold on a real server.
func TestAdoptedBesideReaders(t *testing.T) {
	t.Parallel()
	k := adopting(t, map[string]mapping.Table{"orders": messages()})
	db := sql.OpenDB(k.e)
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	k.besideReaders(db, 60)
}

// TestAdoptedOnSQLServer shows what only a real server can show of adopted tables.
func TestAdoptedOnSQLServer(t *testing.T) {
	onReal(t, func(t *testing.T, url string) {
		for _, m := range createTable.FindAllStringSubmatch(tablesSQL(t), -1) {
			beside(t, url, "DROP TABLE IF EXISTS [dbo].["+m[1]+"]")
		}
		for m := range strings.SplitSeq(tablesSQL(t), ";\n") {
			if at := strings.Index(m, "CREATE "); at >= 0 {
				beside(t, url, m[at:])
			}
		}
		engine := NewEngine(open(t, Options{URL: url, Schema: "adopting"}))
		tables := kindTables()
		tables["orders"] = messages()
		s, err := adopted.New(t.Context(), engine, tables)
		if err != nil {
			t.Fatal(err)
		}
		k := &adopter{T: t, Store: s}
		k.beat(me)
		if found, err := k.Examine(t.Context(), nil); err != nil {
			t.Error(err)
		} else {
			for _, f := range found {
				t.Logf("%s %s: %s %s", f.Severity, f.Topic, f.Text, f.Fix)
			}
		}
		k.allKinds()
		db, err := sql.Open("sqlserver", url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}()
		k.besideReaders(db, 500)
		k.lockedOnSQLServer(db)
	})
}

// lockedOnSQLServer shows that a row that another program has locked is passed over, and that no other job waits for
// its settle or reap.
func (a *adopter) lockedOnSQLServer(db *sql.DB) {
	a.Helper()
	for _, text := range []string{"a", "b", "c"} {
		if _, err := db.ExecContext(a.Context(), readWritten, sql.Named("text", text)); err != nil {
			a.Fatal(err)
		}
	}
	first, second := a.one("orders"), a.claim("orders", 1, time.Hour)[0]
	tx, err := db.BeginTx(a.Context(), nil)
	if err != nil {
		a.Fatal(err)
	}
	if _, err := tx.ExecContext(a.Context(), "UPDATE [dbo].[MsgQueue] SET [Msg] = N'held' WHERE [MsgId] = "+first.ID); err != nil {
		a.Fatal(err)
	}
	var locked *backends.LockedError
	if _, err := a.Commit(context.WithoutCancel(a.Context()), backends.CommitContent{Writes: []backends.Write{backends.Ack{Leases: leasesOf(first)}}, WaitForLocks: true}); !errors.As(err, &locked) {
		a.Errorf("%v", err)
	}
	a.write(backends.Ack{Leases: leasesOf(second)}, 0)
	if third := a.one("orders"); third.ID == first.ID {
		a.Errorf("%+v", third)
	}
	if err := tx.Rollback(); err != nil {
		a.Fatal(err)
	}
	a.write(backends.Ack{Leases: leasesOf(first)}, 0)
}

// TestAdoptedGuess shows the mapping that `qsidecar adopt` proposes for system D's table.
func TestAdoptedGuess(t *testing.T) {
	t.Parallel()
	k := adopting(t, nil, someMessages)
	p, err := guess.Table(t.Context(), NewEngine(k.engine.Store), "", "MsgQueue")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(p.Table.Columns[mapping.ID], p.Table.Columns[mapping.State], p.Table.Columns[mapping.CreatedAt]); got != "[MsgId] [State] [CreateTime]" {
		t.Errorf("%+v", p.Table)
	}
	if p.Table.States[backends.StateReady].Text != "N" {
		t.Errorf("%+v", p.Table.States)
	}
	var cannot *guess.Unadoptable
	if _, err := guess.Table(t.Context(), NewEngine(k.engine.Store), "", "nothing"); !errors.As(err, &cannot) {
		t.Errorf("%v", err)
	}
}
