package batches

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Table is the batches of a database. It implements backends.Batcher. Its zero value with an Engine, a Dialect, a Clock and Groups is ready to use.
type Table struct {
	Engine  Engine
	Dialect backends.Dialect
	Clock   func(ctx context.Context) (time.Time, error) // of the database, outside of a transaction
	Groups  func(sql backends.SQL) bool                  // whether jobs can have groups

	walk walk
}

// Engine is what a Table needs of the database.
type Engine interface {
	Query(ctx context.Context, statements ...*backends.Statement) error
	CommitWith(ctx context.Context, b backends.CommitContent, also backends.TxHooks) (backends.Results, error)
	Command(ctx context.Context, c backends.Command) (count int64, freed bool, err error)
}

const (
	readNotes   = 1000 // notes that a call reads
	noteChunk   = 64   // notes that a statement deletes: the server can try each of their batches with each of them
	readExpired = 50   // batches that a call deletes, or whose cancels it continues
	cancelJobs  = 500  // jobs of one command of a cancel
)

// clock is a backends.SQL of an engine.
type clock interface {
	Clock(ctx context.Context) (time.Time, error)
}

func now(ctx context.Context, sql backends.SQL) (time.Time, error) {
	c, ok := sql.(clock)
	if !ok {
		return time.Time{}, fmt.Errorf("%T has no clock", sql)
	}
	at, err := c.Clock(ctx)
	return at.UTC().Truncate(time.Millisecond), err
}

// change runs f in a transaction, and after behind the writes that f adds to the commit. after can be nil.
func (t *Table) change(ctx context.Context, f func(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error, after func(ctx context.Context, sql backends.SQL, r *backends.Results) error) (backends.Results, error) {
	return t.Engine.CommitWith(ctx, backends.CommitContent{}, backends.TxHooks{Writes: true, Before: f, After: after})
}

// OpenBatch implements backends.Batcher.
func (t *Table) OpenBatch(ctx context.Context, b backends.NewBatch) (id string, existing bool, err error) {
	if err := Check(&b); err != nil {
		return "", false, err
	}
	for range 3 {
		id, existing, err = t.open(ctx, b)
		if !backends.IsRefused(err) || b.Key == "" {
			break
		}
		// Another sidecar possibly stored a batch with the key since this one found none.
	}
	return id, existing, err
}

func (t *Table) open(ctx context.Context, b backends.NewBatch) (id string, existing bool, err error) {
	d := t.Dialect
	_, err = t.change(ctx, func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		id, existing = "", false
		if b.Callback.Group != "" && !t.Groups(sql) {
			return &backends.UnsupportedError{Queue: b.Callback.Queue, What: "group", NoGroups: true}
		}
		if b.Key != "" {
			var same [][]int64
			if err := sql.Do(ctx, numbers("SELECT "+named([]string{d.ToText("b.id")})+" FROM "+d.SidecarTable(batchTable)+" b WHERE b.queue = "+d.TextArg(1)+" AND b.batch_key = "+d.TextArg(2),
				&same, b.Callback.Queue, b.Key)); err != nil {
				return err
			}
			if len(same) > 0 {
				id, existing = ID(same[0][0]), true
				return nil
			}
		}
		at, err := now(ctx, sql)
		if err != nil {
			return err
		}
		r := row{id: NewNumber(), state: backends.BatchOpen, on: b.On, callback: b.Callback, key: b.Key, created: at, expires: at.Add(b.Expire)}
		statements := []*backends.Statement{r.insert(d)}
		if parent := b.Callback.Batch; parent != "" {
			refused, err := t.Enter(ctx, sql, []string{parent})
			if err != nil {
				return err
			}
			if refused[parent] != nil {
				return refused[parent]
			}
			r.parent, _ = Number(parent)
			statements = []*backends.Statement{r.insert(d), addMember(d, r.parent, -r.id)}
		}
		id = ID(r.id)
		return sql.Do(ctx, statements...)
	}, nil)
	return id, existing, err
}

// Enter writes the rows of batches that the transaction adds members to. It returns why some of them can't get any.
func (t *Table) Enter(ctx context.Context, sql backends.SQL, ids []string) (refused map[string]*backends.BatchError, _ error) {
	d := t.Dialect
	refused = map[string]*backends.BatchError{}
	var all []int64
	for _, id := range ids {
		if n, ok := Number(id); ok {
			all = append(all, n)
		} else {
			refused[id] = &backends.BatchError{Batch: id}
		}
	}
	slices.Sort(all) // the order in which every transaction writes them
	all = slices.Compact(all)
	for _, n := range all {
		enter := touch(d, n, "'open', 'closed'")
		state := readState(d, n)
		claimed := execute("SELECT "+named([]string{d.ToText("CASE WHEN EXISTS (SELECT 1 FROM " + d.SidecarTable(memberTable) + " m JOIN " + d.SidecarTable(jobTable) + " j ON j.id = m.job WHERE m.batch = " + d.IntArg(1) +
			" AND m.done = 0 AND j.state = 'claimed') THEN 1 ELSE 0 END")}), n)
		found := false
		claimed.Row = func(row [][]byte) error { found = string(row[0]) == "1"; return nil }
		if err := sql.Do(ctx, enter, state.Statement); err != nil {
			return nil, err
		}
		if enter.Matched == 1 && state.value == backends.BatchClosed {
			if err := sql.Do(ctx, claimed); err != nil {
				return nil, err
			}
		}
		if enter.Matched != 1 || state.value == backends.BatchClosed && !found {
			refused[ID(n)] = &backends.BatchError{Batch: ID(n), State: state.value}
		}
	}
	return refused, nil
}

// stateQuery reads the state of a batch; empty: there is none.
type stateQuery struct {
	*backends.Statement
	value backends.BatchState
	queue string
}

func readState(d backends.Dialect, id int64) *stateQuery {
	q := &stateQuery{Statement: execute("SELECT "+named([]string{d.ToText("b.state"), d.ToText("b.queue")})+" FROM "+d.SidecarTable(batchTable)+" b WHERE b.id = "+d.IntArg(1), id)}
	q.Row = func(row [][]byte) error {
		c := &cells{all: row}
		q.value, q.queue = backends.BatchState(c.text()), c.text()
		return nil
	}
	return q
}

// Member is a job of a batch.
type Member struct {
	Batch int64
	Job   int64
}

// Add stores new members, whose jobs are stored already.
func (t *Table) Add(ctx context.Context, sql backends.SQL, all []Member) error {
	d := t.Dialect
	var statements []*backends.Statement
	each(all, func(batch int64, jobs []string) {
		jobTable := d.SidecarTable(jobTable)
		statements = append(statements,
			execute("UPDATE "+jobTable+" SET batch = "+d.IntArg(1)+" WHERE "+d.AnyOf(2, idColumn), batch, jobs),
			execute("INSERT INTO "+d.SidecarTable(memberTable)+" (batch, done, job) SELECT "+d.IntArg(1)+", 0, id FROM "+jobTable+" WHERE "+d.AnyOf(2, idColumn), batch, jobs))
	})
	return sql.Do(ctx, statements...)
}

// End marks members whose jobs are done, and notes these batches and others of which members ended.
func (t *Table) End(ctx context.Context, sql backends.SQL, done []Member, others []int64) error {
	d := t.Dialect
	var statements []*backends.Statement
	each(done, func(batch int64, jobs []string) {
		statements = append(statements, execute("UPDATE "+d.SidecarTable(memberTable)+" SET done = 1 WHERE batch = "+d.IntArg(1)+" AND done = 0 AND "+d.AnyOf(2, jobColumn), batch, jobs), note(d, batch))
		others = slices.DeleteFunc(others, func(b int64) bool { return b == batch })
	})
	slices.Sort(others)
	for _, batch := range slices.Compact(others) {
		statements = append(statements, note(d, batch))
	}
	return sql.Do(ctx, statements...)
}

// note stores a note. Its number is random, so that no transaction waits for the row of another one.
func note(d backends.Dialect, batch int64) *backends.Statement {
	return execute("INSERT INTO "+d.SidecarTable(noteTable)+" (batch, note) VALUES ("+d.IntArg(1)+", "+d.IntArg(2)+")", batch, rand.Int64N(1<<62))
}

// each calls f with each batch and its jobs, in the order of the batches.
func each(all []Member, f func(batch int64, jobs []string)) {
	slices.SortFunc(all, func(a, b Member) int { return cmp.Or(cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.Job, b.Job)) })
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Batch == all[0].Batch {
			n++
		}
		jobs := make([]string, n)
		for i := range jobs {
			jobs[i] = strconv.FormatInt(all[i].Job, 10)
		}
		f(all[0].Batch, jobs)
		all = all[n:]
	}
}

// locked locks and reads the row of a batch. nil: there is none.
func (t *Table) locked(ctx context.Context, sql backends.SQL, id int64) (*row, error) {
	d := t.Dialect
	var rows []row
	if err := sql.Do(ctx, collect(d.SelectLocked(columns(d, true), d.SidecarTable(batchTable)+" b", "b.id = "+d.IntArg(1), "", 0, false), &rows, id)); err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// CloseBatch implements backends.Batcher.
func (t *Table) CloseBatch(ctx context.Context, queue, id string) error {
	d := t.Dialect
	n, ok := Number(id)
	if !ok {
		return &backends.BatchError{Batch: id}
	}
	_, err := t.change(ctx, func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		r, err := t.locked(ctx, sql, n)
		switch {
		case err != nil:
			return err
		case r == nil || r.callback.Queue != queue:
			return &backends.BatchError{Batch: id}
		case r.state != backends.BatchOpen:
			return nil
		}
		at, err := now(ctx, sql)
		if err != nil {
			return err
		}
		return sql.Do(ctx, execute("UPDATE "+d.SidecarTable(batchTable)+" SET changes = changes + 1, state = 'closed', closed_at = "+d.IntArg(1)+" WHERE id = "+d.IntArg(2), at.UnixMilli(), n), note(d, n))
	}, nil)
	return err
}

// ResolveBatches implements backends.Batcher.
func (t *Table) ResolveBatches(ctx context.Context, touched []string) (r backends.ResolvedBatches, err error) {
	found, err := t.find(ctx, touched)
	if err != nil {
		return r, err
	}
	var ends [][]int64
	if len(found.batches) > 0 {
		if err := t.Engine.Query(ctx, finished(t.Dialect, texts64(found.batches), &ends)); err != nil {
			return r, err
		}
	}
	t.walk.end(found.step, found.walk, time.Now())
	var errs []error
	failed := func(id int64, what string, err error) (outage bool) {
		if err == nil {
			return false
		}
		errs = append(errs, fmt.Errorf("can't %s the batch %d: %w", what, id, err))
		found.notes = slices.DeleteFunc(found.notes, func(n [2]int64) bool { return n[0] == id }) // a later call tries again
		return backends.Retryable(err) || ctx.Err() != nil || errors.Is(err, backends.ErrUnknownOutcome)
	}
	for _, one := range ends {
		if failed(one[0], "end", t.end(ctx, one[0], &r)) {
			return r, errors.Join(errs...)
		}
	}
	if len(found.notes) > 0 {
		if err := t.deleteNotes(ctx, found.notes); err != nil {
			return r, errors.Join(append(errs, err)...)
		}
	}
	for _, id := range found.cancelling {
		_, _, err := t.cancelMembers(ctx, id, backends.BatchCancel{})
		if failed(id, "cancel the jobs of", err) {
			return r, errors.Join(errs...)
		}
	}
	for _, id := range found.expired {
		if failed(id, "delete", t.expire(ctx, id, &r)) {
			return r, errors.Join(errs...)
		}
	}
	r.More = len(errs) == 0 && (len(found.notes) >= readNotes || len(found.expired) >= readExpired)
	return r, errors.Join(errs...)
}

// found is what a call of ResolveBatches has to do.
type found struct {
	batches             []int64 // that possibly end
	notes               [][2]int64
	cancelling, expired []int64

	step step
	walk []int64 // the batches of the step, which are among batches
}

// find returns the batches; nil: those with notes, and all else that is due. The notes of named batches stay until a later call finds
// them, which is about a second later. So those of many commits are deleted together.
func (t *Table) find(ctx context.Context, touched []string) (f found, err error) {
	for _, id := range touched {
		if n, ok := Number(id); ok {
			f.batches = append(f.batches, n)
		}
	}
	if touched != nil {
		return f, nil
	}
	d := t.Dialect
	id := named([]string{d.ToText("b.id")})
	table := d.SidecarTable(batchTable) + " b"
	at, err := t.Clock(ctx)
	if err != nil {
		return f, err
	}
	var notes, walk, cancelling, expired [][]int64
	queries := []*backends.Statement{
		numbers(d.SelectFirst(named([]string{d.ToText("batch"), d.ToText("note")}), d.SidecarTable(noteTable), "batch > 0", "batch, note", d.IntArg(1)), &notes, int64(readNotes)),
		numbers(d.SelectFirst(id, table, "b.state = 'cancelling'", "b.id", d.IntArg(1)), &cancelling, int64(readExpired)),
		numbers(d.SelectFirst(id, table, "b.expires_at <= "+d.IntArg(2), "b.expires_at", d.IntArg(1)), &expired, int64(readExpired), at.UnixMilli()),
	}
	if f.step = t.walk.begin(time.Now()); f.step.most > 0 {
		queries = append(queries, numbers(d.SelectFirst(id, table, "b.state = 'closed' AND b.id > "+d.IntArg(2), "b.id", d.IntArg(1)), &walk, int64(f.step.most), f.step.after))
	}
	if err := t.Engine.Query(ctx, queries...); err != nil {
		return f, err
	}
	for _, n := range notes {
		f.notes = append(f.notes, [2]int64{n[0], n[1]})
		f.batches = append(f.batches, n[0])
	}
	f.walk, f.cancelling, f.expired = first(walk), first(cancelling), first(expired)
	f.batches = append(f.batches, f.walk...)
	slices.Sort(f.batches)
	f.batches = slices.Compact(f.batches)
	return f, nil
}

func first(rows [][]int64) []int64 {
	all := make([]int64, len(rows))
	for i := range rows {
		all[i] = rows[i][0]
	}
	return all
}

func texts64(all []int64) []string {
	texts := make([]string, len(all))
	for i, n := range all {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return texts
}

// deleteNotes deletes notes. Their batches can't end because of them: a query after them found unfinished members, or the batches have ended.
func (t *Table) deleteNotes(ctx context.Context, notes [][2]int64) error {
	d := t.Dialect
	slices.SortFunc(notes, func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	_, err := t.change(ctx, func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		var statements []*backends.Statement
		for some := range slices.Chunk(notes, noteChunk) {
			var of, numbers []string
			for _, n := range some {
				of, numbers = append(of, ID(n[0])), append(numbers, strconv.FormatInt(n[1], 10))
			}
			statements = append(statements, execute("DELETE FROM "+d.SidecarTable(noteTable)+" WHERE "+d.AnyOf(1, batchColumn)+" AND "+d.AnyOf(2, noteColumn), slices.Compact(of), numbers))
		}
		return sql.Do(ctx, statements...)
	}, nil)
	return err
}

// end stores the callback of a batch, and ends the batch, if no other sidecar has, and if no member is unfinished.
func (t *Table) end(ctx context.Context, id int64, r *backends.ResolvedBatches) error {
	d := t.Dialect
	var b *row
	var inParent bool
	res, err := t.change(ctx, func(ctx context.Context, sql backends.SQL, content *backends.CommitContent) (err error) {
		if b, err = t.locked(ctx, sql, id); err != nil || b == nil || b.state != backends.BatchClosed {
			b = nil
			return err
		}
		// A query of its own: the first one possibly waited, and its snapshot is from before that.
		counts := map[int64]Counts{}
		if err := sql.Do(ctx, count(d, []string{ID(id)}, counts)); err != nil {
			return err
		}
		if b.Counts = counts[id]; !b.CanEnd(b.on) {
			b = nil
			return nil
		}
		at, err := now(ctx, sql)
		if err != nil {
			return err
		}
		b.state, b.ended, b.expires = backends.BatchEnded, at, at.Add(backends.EndedBatchKept)
		job := Callback(ID(id), b.callback, b.Counts)
		statements := append(forget(d, id), execute("UPDATE "+d.SidecarTable(batchTable)+" SET changes = changes + 1, state = 'ended', ended_at = "+d.IntArg(1)+", expires_at = "+d.IntArg(2)+
			", done = "+d.IntArg(3)+", failed = "+d.IntArg(4)+" WHERE id = "+d.IntArg(5), at.UnixMilli(), b.expires.UnixMilli(), b.Done, b.Failed, id))
		var parent *backends.Statement
		if b.parent != 0 {
			parent = touch(d, b.parent, "'open', 'closed'")
			statements = append(statements, parent, execute("DELETE FROM "+d.SidecarTable(memberTable)+" WHERE batch = "+d.IntArg(1)+" AND job = "+d.IntArg(2), b.parent, -id))
		}
		if err := sql.Do(ctx, statements...); err != nil {
			return err
		}
		if inParent = parent != nil && parent.Matched == 1; inParent {
			job = InBatch(job, ID(b.parent))
		}
		content.Writes = append(content.Writes, backends.Enqueue{Jobs: []backends.NewJob{job}})
		return nil
	}, func(ctx context.Context, sql backends.SQL, res *backends.Results) error {
		if b == nil {
			return nil
		}
		if err := sql.Do(ctx); err != nil { // sends the INSERT, whose answer has the id
			return err
		}
		if len(res.Writes) != 1 || len(res.Writes[0].Stored) != 1 {
			return cmp.Or(res.Writes[0].Err, errors.New("the callback was not stored"))
		}
		b.job = res.Writes[0].Stored[0].ID
		if err := sql.Do(ctx, execute("UPDATE "+d.SidecarTable(batchTable)+" SET callback = "+d.TextArg(1)+" WHERE id = "+d.IntArg(2), b.job, id)); err != nil || !inParent {
			return err
		}
		job, err := strconv.ParseInt(b.job, 10, 64)
		if err != nil {
			return err
		}
		return t.Add(ctx, sql, []Member{{Batch: b.parent, Job: job}})
	})
	if err != nil || b == nil {
		return err
	}
	r.Ended = append(r.Ended, b.view())
	for _, queue := range res.Writes[0].MadeReady {
		if !slices.Contains(r.Ready, queue) {
			r.Ready = append(r.Ready, queue)
		}
	}
	return nil
}

// expire deletes a batch whose time is over.
func (t *Table) expire(ctx context.Context, id int64, r *backends.ResolvedBatches) error {
	d := t.Dialect
	var b *row
	_, err := t.change(ctx, func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) (err error) {
		if b, err = t.locked(ctx, sql, id); err != nil || b == nil {
			return err
		}
		at, err := now(ctx, sql)
		if err != nil || b.expires.After(at) {
			b = nil
			return err
		}
		statements := append(forget(d, id), execute("DELETE FROM "+d.SidecarTable(batchTable)+" WHERE id = "+d.IntArg(1), id))
		if b.parent != 0 && !b.state.Ended() {
			statements = append(statements, note(d, b.parent))
		}
		return sql.Do(ctx, statements...)
	}, nil)
	if err == nil && b != nil && !b.state.Ended() {
		r.Expired = append(r.Expired, b.view())
	}
	return err
}

// retainDead is how long a cancelled job that has no retention is kept, if the cancel continues in maintenance, which doesn't have the policies of the queues.
const retainDead = 30 * 24 * time.Hour

// CancelBatch implements backends.Batcher.
func (t *Table) CancelBatch(ctx context.Context, c backends.BatchCancel) (r backends.CancelledBatch, err error) {
	d := t.Dialect
	n, ok := Number(c.ID)
	if !ok {
		return r, &backends.BatchError{Batch: c.ID}
	}
	_, err = t.change(ctx, func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		b, err := t.locked(ctx, sql, n)
		if err != nil {
			return err
		}
		if b == nil || c.Queue != "" && b.callback.Queue != c.Queue {
			return &backends.BatchError{Batch: c.ID}
		}
		if r.State = b.state; b.state.Ended() {
			return nil
		}
		r.State = backends.BatchCancelling
		return sql.Do(ctx, execute("UPDATE "+d.SidecarTable(batchTable)+" SET changes = changes + 1, state = 'cancelling' WHERE id = "+d.IntArg(1), n))
	}, nil)
	if err != nil || r.State != backends.BatchCancelling {
		return r, err
	}
	jobs, ended, err := t.cancelMembers(ctx, n, c)
	if r.Jobs = jobs; ended {
		r.State = backends.BatchCancelled
	}
	return r, err
}

// cancelMembers cancels the unfinished members of a batch that gets no more, and then ends the batch. If others have a member locked, a
// later call ends it.
func (t *Table) cancelMembers(ctx context.Context, id int64, c backends.BatchCancel) (jobs int64, ended bool, err error) {
	d := t.Dialect
	for {
		left, err := t.membersOf(ctx, id, memberLeft(d), cancelJobs)
		if err != nil {
			return jobs, false, err
		}
		if len(left) == 0 {
			ended, err = t.endCancelled(ctx, id)
			return jobs, ended, err
		}
		byQueue := map[string][]string{}
		var queues []string
		for _, j := range left {
			if j.Batch != "" {
				child, err := t.CancelBatch(ctx, backends.BatchCancel{ID: j.Batch, RetainDead: c.RetainDead, Cancelled: c.Cancelled})
				jobs += child.Jobs
				if err != nil {
					return jobs, false, err
				}
				continue
			}
			if byQueue[j.Queue] == nil {
				queues = append(queues, j.Queue)
			}
			byQueue[j.Queue] = append(byQueue[j.Queue], j.ID)
		}
		for _, queue := range queues {
			r := backends.CancelledJobs{Queue: queue, IDs: byQueue[queue]}
			command := backends.Command{
				Kind: backends.Cancel, Queue: queue, IDs: r.IDs, RetainDead: retainDead,
				Ended:   func(claims []backends.Token) { r.Claims = append(r.Claims, claims...) },
				Pending: func(all []backends.StoredPending) { r.Pending = append(r.Pending, all...) },
			}
			if c.RetainDead != nil {
				command.RetainDead = c.RetainDead(queue)
			}
			n, freed, err := t.Engine.Command(ctx, command)
			if r.Jobs, r.Freed = n, freed; n > 0 && c.Cancelled != nil {
				c.Cancelled(r)
			}
			if jobs += n; err != nil {
				return jobs, false, err
			}
		}
	}
}

// endCancelled ends a batch whose jobs are cancelled, unless a member is unfinished.
func (t *Table) endCancelled(ctx context.Context, id int64) (ended bool, _ error) {
	d := t.Dialect
	_, err := t.change(ctx, func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		b, err := t.locked(ctx, sql, id)
		if err != nil {
			return err
		}
		if ended = b == nil || b.state != backends.BatchCancelling; ended {
			return nil
		}
		counts := map[int64]Counts{}
		if err := sql.Do(ctx, count(d, []string{ID(id)}, counts)); err != nil {
			return err
		}
		if ended = counts[id].Left == 0; !ended {
			return nil
		}
		at, err := now(ctx, sql)
		if err != nil {
			return err
		}
		statements := append(forget(d, id), execute("UPDATE "+d.SidecarTable(batchTable)+" SET changes = changes + 1, state = 'cancelled', ended_at = "+d.IntArg(1)+", expires_at = "+d.IntArg(2)+
			", done = "+d.IntArg(3)+", failed = "+d.IntArg(4)+" WHERE id = "+d.IntArg(5), at.UnixMilli(), at.Add(backends.EndedBatchKept).UnixMilli(), counts[id].Done, counts[id].Failed, id))
		if b.parent != 0 {
			statements = append(statements, note(d, b.parent))
		}
		return sql.Do(ctx, statements...)
	}, nil)
	return ended && err == nil, err
}

// membersOf returns members of a batch that meet a condition, by their ids.
func (t *Table) membersOf(ctx context.Context, id int64, condition string, most int) (all []backends.BatchJob, err error) {
	d := t.Dialect
	of := func(column string) string {
		return "(SELECT j." + column + " FROM " + d.SidecarTable(jobTable) + " j WHERE j.id = m.job)"
	}
	err = t.Engine.Query(ctx, &backends.Statement{
		Text: d.SelectFirst(named([]string{d.ToText("m.job"), d.ToText(of("queue")), d.ToText(of("state"))}), d.SidecarTable(memberTable)+" m", "m.batch = "+d.IntArg(1)+" AND "+condition, "m.job", d.IntArg(2)),
		Args: []any{id, int64(most)},
		Row: func(row [][]byte) error {
			c := &cells{all: row}
			job := c.number()
			j := backends.BatchJob{ID: strconv.FormatInt(job, 10), Queue: c.text(), State: backends.State(c.text())}
			if job < 0 {
				j = backends.BatchJob{Batch: ID(-job)}
			} else if j.State == "" {
				j.State = backends.StateDeleted
			}
			all = append(all, j)
			return c.err
		},
	})
	return all, err
}

// Batches implements backends.Batcher.
func (t *Table) Batches(ctx context.Context, l backends.BatchList) (all []backends.Batch, err error) {
	if l.States != nil {
		return t.states(ctx, l.States)
	}
	d := t.Dialect
	after, _ := strconv.ParseInt(l.After, 10, 64)
	where, args := "b.id > "+d.IntArg(2), []any{int64(l.Max), after}
	if l.ID != "" {
		n, _ := Number(l.ID)
		where, args = where+" AND b.id = "+d.IntArg(3), append(args, n)
	}
	if l.Queue != "" {
		where, args = where+" AND b.queue = "+d.TextArg(len(args)+1), append(args, l.Queue)
	}
	if l.Active {
		where += " AND b.state IN ('open', 'closed', 'cancelling')"
	}
	var rows []row
	if err := t.Engine.Query(ctx, collect(d.SelectFirst(columns(d, l.ID != ""), d.SidecarTable(batchTable)+" b", where, "b.id", d.IntArg(1)), &rows, args...)); err != nil {
		return nil, err
	}
	var ids []string
	for i := range rows {
		if !rows[i].state.Ended() {
			ids = append(ids, ID(rows[i].id))
		}
	}
	counts := map[int64]Counts{}
	if len(ids) > 0 {
		if err := t.Engine.Query(ctx, count(d, ids, counts)); err != nil {
			return nil, err
		}
	}
	for i := range rows {
		if !rows[i].state.Ended() {
			rows[i].Counts = counts[rows[i].id]
		}
		all = append(all, rows[i].view())
	}
	if l.ID != "" && len(all) == 1 && !all[0].State.Ended() {
		all[0].Jobs, err = t.membersOf(ctx, rows[0].id, memberNotDone(d), backends.BatchJobs)
	}
	return all, err
}

// states returns the states and the callbacks of batches.
func (t *Table) states(ctx context.Context, ids []string) (all []backends.Batch, err error) {
	d := t.Dialect
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := Number(id); return !ok })
	if len(ids) == 0 {
		return nil, nil
	}
	err = t.Engine.Query(ctx, &backends.Statement{
		Text: "SELECT " + named([]string{d.ToText("b.id"), d.ToText("b.queue"), d.ToText("b.state"), d.ToText("b.callback"), d.ToText("b.done"), d.ToText("b.failed")}) + " FROM " + d.SidecarTable(batchTable) + " b WHERE " + d.AnyOf(1, idColumn),
		Args: []any{ids},
		Row: func(row [][]byte) error {
			c := &cells{all: row}
			all = append(all, backends.Batch{ID: ID(c.number()), Queue: c.text(), State: backends.BatchState(c.text()), Callback: c.text(), Done: c.number(), Failed: c.number()})
			return c.err
		},
	})
	return all, err
}
