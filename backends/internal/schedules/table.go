package schedules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Table is the schedules of a database. It implements backends.Scheduler.
type Table struct {
	Engine  Engine
	Dialect backends.Dialect

	// Peek returns a job, to find out whether it is finished.
	Peek func(ctx context.Context, p backends.Peek) ([]backends.View, error)

	// Adopted are the queues that this sidecar has in adopted tables. Insert stores a job in one, in a transaction. ready: it can be
	// claimed at once. nil: there are none.
	Adopted []string
	Insert  func(ctx context.Context, sql backends.SQL, j backends.NewJob) (id string, ready bool, err error)
}

// Engine is what a Table needs of the database.
type Engine interface {
	Query(ctx context.Context, statements ...*backends.Statement) error
	CommitWith(ctx context.Context, b backends.CommitContent, also backends.TxHooks) (backends.Results, error)
	LockedTables() *backends.LockedTables
}

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

// change runs f in a transaction. f changes nothing but the table, or adds writes.
func (t *Table) change(ctx context.Context, f func(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error, after func(ctx context.Context, sql backends.SQL, r *backends.Results) error, freed func() []string) error {
	if why := t.Engine.LockedTables().Of(backends.OwnSchedules); why != nil {
		return why
	}
	_, err := t.Engine.CommitWith(ctx, backends.CommitContent{}, backends.TxHooks{Writes: true, Before: f, After: after, Freed: freed})
	return err
}

// collect is a statement that reads whole rows.
func collect(text string, rows *[]row, args ...any) *backends.Statement {
	return collectRows(text, true, rows, args)
}

func collectRows(text string, whole bool, rows *[]row, args []any) *backends.Statement {
	*rows = nil
	return &backends.Statement{Text: text, Args: args, Row: func(cells [][]byte) error {
		r, err := scan(cells, whole)
		*rows = append(*rows, r)
		return err
	}}
}

// Schedules implements backends.Scheduler.
func (t *Table) Schedules(ctx context.Context, l backends.ScheduleList) (all []backends.Schedule, err error) {
	d := t.Dialect
	var rows []row
	var at time.Time
	where, args := "s.name > "+d.TextArg(2), []any{int64(l.Max), l.After}
	if l.Name != "" {
		where, args = where+" AND s.name = "+d.TextArg(3), append(args, l.Name)
	}
	if l.Queue != "" {
		where, args = where+" AND s.queue = "+d.TextArg(len(args)+1), append(args, l.Queue)
	}
	if why := t.Engine.LockedTables().Of(backends.OwnSchedules); why != nil {
		return nil, why
	}
	whole := l.Name != ""
	clock := &backends.Statement{Text: "SELECT " + d.ToText(d.NowMillis()) + " AS qsidecar_1", Row: func(cells [][]byte) error {
		var ms int64
		_, err := fmt.Sscan(string(cells[0]), &ms)
		at = time.UnixMilli(ms).UTC()
		return err
	}}
	if err := t.Engine.Query(ctx, collectRows(d.SelectFirst(columns(d, whole), from(d), where, "s.name", d.IntArg(1)), whole, &rows, args), clock); err != nil {
		return nil, err
	}
	all = make([]backends.Schedule, len(rows))
	for i := range rows {
		all[i] = rows[i].Schedule
		Describe(&all[i], at)
	}
	return all, nil
}

// locked locks and reads the row of a schedule. nil: there is none.
func (t *Table) locked(ctx context.Context, sql backends.SQL, name string) (*row, error) {
	d := t.Dialect
	var rows []row
	if err := sql.Do(ctx, collect(d.SelectLocked(columns(d, true), from(d), "s.name = "+d.TextArg(1), "", 0, false), &rows, name)); err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// ErrDry rolls a transaction back that was to change nothing.
var ErrDry = errors.New("dry run")

// DeclareSchedule implements backends.Scheduler.
func (t *Table) DeclareSchedule(ctx context.Context, s backends.Schedule, dry bool) (d backends.Declared, err error) {
	if err := Check(&s); err != nil {
		return d, err
	}
	for range 3 {
		d, err = t.declare(ctx, s, dry)
		if !backends.IsRefused(err) {
			return d, err
		}
		// Another sidecar possibly inserted the row since this one found none.
	}
	return d, err
}

func (t *Table) declare(ctx context.Context, s backends.Schedule, dry bool) (d backends.Declared, err error) {
	dialect := t.Dialect
	err = t.change(ctx, func(ctx context.Context, sql backends.SQL, _ *backends.CommitContent) error {
		d = backends.Declared{}
		was, err := t.locked(ctx, sql, s.Name)
		if err != nil {
			return err
		}
		at, err := now(ctx, sql)
		if err != nil {
			return err
		}
		next := row{adopted: slices.Contains(t.Adopted, s.Queue)}
		var before *backends.Schedule
		if was != nil {
			before = &was.Schedule
		}
		if next.Schedule, d, err = Declare(before, s, at); err != nil {
			return err
		}
		if was != nil && next.adopted != was.adopted && d.Outcome != backends.DeclareIgnored {
			d.Outcome, d.Changes = backends.DeclareUpdated, append(d.Changes, moved(s.Queue, next.adopted))
		}
		switch {
		case dry:
			return ErrDry
		case d.Outcome == backends.DeclareCreated:
			if err := t.checkCount(ctx, sql); err != nil {
				return err
			}
			return sql.Do(ctx, next.insert(dialect))
		case d.Outcome == backends.DeclareUpdated:
			return sql.Do(ctx, next.update(dialect))
		}
		return nil
	}, nil, nil)
	if errors.Is(err, ErrDry) {
		err = nil
	}
	return d, err
}

// moved is the change of a schedule whose queue is in an adopted table now, or isn't any more, as this sidecar's config has it.
func moved(queue string, adopted bool) backends.FieldChange {
	c := backends.FieldChange{Field: "queue", From: queue + " in an adopted table", To: queue}
	if adopted {
		c.From, c.To = c.To, c.From
	}
	return c
}

func (t *Table) checkCount(ctx context.Context, sql backends.SQL) error {
	d := t.Dialect
	n := 0
	err := sql.Do(ctx, &backends.Statement{Text: "SELECT " + d.ToText("count(*)") + " AS qsidecar_1 FROM " + from(d), Row: func(cells [][]byte) error {
		_, err := fmt.Sscan(string(cells[0]), &n)
		return err
	}})
	if err == nil && n >= backends.MaxSchedules {
		err = errTooMany
	}
	return err
}

// ChangeSchedule implements backends.Scheduler.
func (t *Table) ChangeSchedule(ctx context.Context, c backends.ScheduleCommand) (job string, err error) {
	d := t.Dialect
	var fired fire
	err = t.change(ctx, func(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error {
		fired = fire{}
		s, err := t.locked(ctx, sql, c.Name)
		if err != nil {
			return err
		}
		if s == nil || !Allows(&c, &s.Schedule) {
			return backends.ErrNoSuchSchedule
		}
		if c.Kind == backends.ScheduleDelete {
			return sql.Do(ctx, s.delete(d))
		}
		at, err := now(ctx, sql)
		if err != nil {
			return err
		}
		switch c.Kind {
		case backends.ScheduleRun:
			if s.adopted && !slices.Contains(t.Adopted, s.Queue) {
				return &backends.ScheduleError{Field: "queue", Err: fmt.Errorf("the queue %s is in an adopted table that this sidecar's config doesn't have: run it through a sidecar that has the table", s.Queue)}
			}
			return t.store(ctx, sql, b, &fired, *s, at, c.Expiry)
		case backends.SchedulePause:
			s.Paused, s.NextAt = true, time.Time{}
		case backends.ScheduleResume:
			if !s.Paused {
				return nil
			}
			s.Paused = false
			if s.NextAt, err = Resume(&s.Schedule, at); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a command of the unknown kind %q", c.Kind)
		}
		return sql.Do(ctx, s.update(d))
	}, func(ctx context.Context, sql backends.SQL, r *backends.Results) error {
		return t.stored(ctx, sql, r, &fired)
	}, fired.freed)
	if err != nil || len(fired.jobs) == 0 {
		return "", err
	}
	return fired.jobs[0].id, nil
}

// fire is what a transaction stores.
type fire struct {
	jobs  []newJob
	ready []string // adopted queues
	found int      // schedules that were due
}

// newJob is the job of an occurrence.
type newJob struct {
	row
	at    time.Time
	id    string
	write int // the number of the engine's write; < 0: it is in an adopted table
}

func (f *fire) freed() []string { return f.ready }

// store adds the job of an occurrence to the transaction.
func (t *Table) store(ctx context.Context, sql backends.SQL, b *backends.CommitContent, f *fire, r row, at time.Time, expiry backends.QueueExpiry) (err error) {
	j := newJob{row: r, at: at, write: -1}
	if job := Job(&r.Schedule, at); slices.Contains(t.Adopted, r.Queue) {
		var ready bool
		if j.id, ready, err = t.Insert(ctx, sql, job); err != nil {
			return err
		}
		if ready && !slices.Contains(f.ready, r.Queue) {
			f.ready = append(f.ready, r.Queue)
		}
	} else {
		job.Expiry = expiry.Of(r.Queue)
		j.write = len(b.Writes)
		b.Writes = append(b.Writes, backends.Enqueue{Jobs: []backends.NewJob{job}})
	}
	f.jobs = append(f.jobs, j)
	return nil
}

// haveIDs copies the ids of the jobs, and reports whether all have one.
func (f *fire) haveIDs(r *backends.Results) bool {
	all := true
	for i := range f.jobs {
		j := &f.jobs[i]
		if j.write >= 0 && len(r.Writes[j.write].Stored) == 1 {
			j.id = r.Writes[j.write].Stored[0].ID
		}
		all = all && j.id != ""
	}
	return all
}

// stored notes the ids of the jobs.
func (t *Table) stored(ctx context.Context, sql backends.SQL, r *backends.Results, f *fire) error {
	if len(f.jobs) == 0 {
		return nil
	}
	for range 2 { // an engine can read its clock first, if the jobs have an Expiry
		if err := sql.Do(ctx); err != nil { // sends the INSERTs, whose answers have the ids
			return err
		}
		if f.haveIDs(r) {
			break
		}
	}
	d := t.Dialect
	last := map[string]*backends.Statement{}
	var names []string
	for i := range f.jobs {
		j := &f.jobs[i]
		if last[j.Name] == nil {
			names = append(names, j.Name)
		}
		last[j.Name] = j.made(d, j.at, j.id)
	}
	var all []*backends.Statement
	for _, name := range names {
		all = append(all, last[name])
	}
	return sql.Do(ctx, all...)
}

// FireSchedules implements backends.Scheduler. If the database refuses a job, all schedules that are due are fired one by one.
func (t *Table) FireSchedules(ctx context.Context, expiry backends.QueueExpiry) (r backends.FiredSchedules, err error) {
	x := firing{Table: t, r: &r, expiry: expiry, unfinished: map[string]string{}, checked: map[string]string{}}
	err = x.fire(ctx, managedOnly, "")
	if err != nil && backends.IsRefused(err) {
		err = x.each(ctx, managedOnly)
	}
	if len(t.Adopted) > 0 && (err == nil || backends.IsRefused(err)) {
		err = errors.Join(err, x.each(ctx, adoptedOnly)) // one table that is out of order must not stop the others
	}
	return r, err
}

// firing is one call of FireSchedules.
type firing struct {
	*Table
	r      *backends.FiredSchedules
	at     time.Time // the database's clock in the last transaction
	expiry backends.QueueExpiry

	// The last jobs of schedules whose occurrences must not overlap, by schedule: those that are known, and those of them that
	// aren't finished.
	checked, unfinished map[string]string
}

// kind is which schedules a transaction fires.
type kind bool

const (
	managedOnly kind = false
	adoptedOnly kind = true
)

// isDue is the condition for schedules that are due behind another one (nil: all), and its arguments. The first argument is their limit.
func (f *firing) isDue(k kind, at time.Time, after *row) (where string, args []any) {
	d := f.Dialect
	where = "s.next_at IS NOT NULL AND s.next_at <= " + d.IntArg(2) + " AND s.adopted = " + d.IntArg(3)
	args = []any{int64(backends.ScheduleBatch), at.UnixMilli(), bit(bool(k))}
	if k == adoptedOnly {
		where += " AND " + d.AnyOf(4, queueIn)
		args = append(args, f.Adopted)
	}
	if n := len(args); after != nil {
		where += " AND (s.next_at > " + d.IntArg(n+1) + " OR s.next_at = " + d.IntArg(n+2) + " AND s.name > " + d.TextArg(n+3) + ")"
		args = append(args, after.NextAt.UnixMilli(), after.NextAt.UnixMilli(), after.Name)
	}
	return where, args
}

// due locks the rows of schedules that are due, but not those that another sidecar fires now. name: only this one.
func (f *firing) due(ctx context.Context, sql backends.SQL, k kind, name string, at time.Time, after *row) (rows []row, err error) {
	d := f.Dialect
	where, args := f.isDue(k, at, after)
	if name != "" {
		where += " AND s.name = " + d.TextArg(len(args)+1)
		args = append(args, name)
	}
	err = sql.Do(ctx, collect(d.SelectLocked(columns(d, true), from(d), where, "s.next_at, s.name", 1, true), &rows, args...))
	return rows, err
}

// mostErrors is how many errors of schedules a call returns.
const mostErrors = 5

// each fires each schedule in a transaction of its own, so that none stops another one.
func (f *firing) each(ctx context.Context, k kind) error {
	d := f.Dialect
	var errs []error
	failed := 0
	for rows, more := []row(nil), true; more; {
		var after *row
		if len(rows) > 0 {
			after = &rows[len(rows)-1]
		}
		where, args := f.isDue(k, f.at, after)
		if err := f.Engine.Query(ctx, collectRows(d.SelectFirst(columns(d, false), from(d), where, "s.next_at, s.name", d.IntArg(1)), false, &rows, args)); err != nil {
			return errors.Join(append(errs, err)...)
		}
		more = len(rows) == backends.ScheduleBatch
		for i := range rows {
			err := f.fire(ctx, k, rows[i].Name)
			if err == nil {
				continue
			}
			if failed++; failed <= mostErrors {
				errs = append(errs, fmt.Errorf("can't store a job of the schedule %s in the queue %s: %w", rows[i].Name, rows[i].Queue, err))
			}
			if u, ok := errors.AsType[*backends.UnavailableError](err); ok && u.Queue == "" || ctx.Err() != nil {
				more = false
				break
			}
		}
	}
	if failed > mostErrors {
		errs = append(errs, fmt.Errorf("%d more schedules failed", failed-mostErrors))
	}
	return errors.Join(errs...)
}

// fire fires the schedules that are due, in one transaction. name: only this one. If a later program stored so many of them that they
// fill a transaction, it goes on behind them.
func (f *firing) fire(ctx context.Context, k kind, name string) error {
	var after *row
	for {
		var last *row // of a transaction that was full, and left some schedules to a later program
		var out fire
		var done []backends.FiredSchedule
		var ask []row
		err := f.change(ctx, func(ctx context.Context, sql backends.SQL, b *backends.CommitContent) error {
			out, done, ask, last = fire{}, nil, nil, nil
			at, err := now(ctx, sql)
			if err != nil {
				return err
			}
			f.at = at
			rows, err := f.due(ctx, sql, k, name, at, after)
			out.found = len(rows)
			if err != nil || len(rows) == 0 {
				return err
			}
			plans := make([]Due, len(rows))
			var all []*backends.Statement
			for i := range rows {
				if plans[i], err = Plan(&rows[i].Schedule, at); err != nil { // a later program stored it, and fires it
					if all = append(all, nil); len(rows) == backends.ScheduleBatch {
						last = &rows[len(rows)-1]
					}
					continue
				}
				if f.mustAsk(&rows[i]) {
					ask, all = append(ask, rows[i]), append(all, nil)
					continue
				}
				all = append(all, rows[i].advance(f.Dialect, plans[i].Next))
			}
			if err := sql.Do(ctx, slices.DeleteFunc(slices.Clone(all), func(s *backends.Statement) bool { return s == nil })...); err != nil {
				return err
			}
			for i := range rows {
				if all[i] == nil || all[i].Matched != 1 {
					continue // another sidecar fired it
				}
				one := f.overlap(&rows[i], &plans[i])
				for _, at := range plans[i].Occurrences {
					if err := f.store(ctx, sql, b, &out, rows[i], at, f.expiry); err != nil {
						return err
					}
				}
				done = append(done, one)
			}
			return nil
		}, func(ctx context.Context, sql backends.SQL, r *backends.Results) error {
			return f.stored(ctx, sql, r, &out)
		}, out.freed)
		if err != nil {
			return err
		}
		f.add(&out, done)
		switch {
		case len(ask) > 0:
			if err := f.ask(ctx, ask); err != nil {
				return err
			}
		case last != nil:
			after = last
		default:
			return nil
		}
	}
}

// add adds the result of a transaction.
func (f *firing) add(out *fire, done []backends.FiredSchedule) {
	for i := range done {
		for _, j := range out.jobs {
			if j.Name == done[i].Name {
				done[i].Jobs = append(done[i].Jobs, j.id)
			}
		}
	}
	for _, j := range out.jobs {
		if !slices.Contains(f.r.Ready, j.Queue) {
			f.r.Ready = append(f.r.Ready, j.Queue)
		}
	}
	f.r.Fired = append(f.r.Fired, done...)
	f.r.More = f.r.More || out.found == backends.ScheduleBatch && len(done) > 0
}

// overlap takes occurrences out of the plan that would overlap.
func (f *firing) overlap(r *row, p *Due) backends.FiredSchedule {
	one := backends.FiredSchedule{Name: r.Name, Queue: r.Queue, Missed: p.Missed}
	if r.Overlap != backends.OverlapSkip || len(p.Occurrences) == 0 {
		return one
	}
	keep := 1 // the next one would overlap with it
	if r.LastJob != "" && f.unfinished[r.Name] == r.LastJob {
		keep = 0
	}
	one.Overlapped = len(p.Occurrences) > keep
	p.Occurrences = p.Occurrences[len(p.Occurrences)-keep:]
	return one
}

// mustAsk reports whether it isn't known if the last job of a schedule is finished.
func (f *firing) mustAsk(r *row) bool {
	return r.Overlap == backends.OverlapSkip && r.LastJob != "" && f.checked[r.Name] != r.LastJob
}

// ask finds out whether the last jobs are finished. It runs outside of the transaction: a job that ends between the two could
// also have ended a moment later.
func (f *firing) ask(ctx context.Context, rows []row) error {
	for i := range rows {
		r := &rows[i]
		views, err := f.Peek(ctx, backends.Peek{Queue: r.Queue, IDs: []string{r.LastJob}, Max: 1, MaxBytes: 1})
		if err != nil && !errors.Is(err, backends.ErrNoSuchJob) {
			return err
		}
		f.checked[r.Name] = r.LastJob
		for _, v := range views {
			if v.State != backends.StateDone && v.State != backends.StateDead {
				f.unfinished[r.Name] = r.LastJob
			}
		}
	}
	return nil
}
