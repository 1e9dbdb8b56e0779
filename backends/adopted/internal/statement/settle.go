package statement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Change is a change of a job's row. It matches the row only while that shows the lease's claim,
// unless it is a claim itself.
type Change struct {
	Lease     *lease.Lease
	Before    []*backends.Statement // run before Statement
	Statement *backends.Statement
	Rows      int64 // the number of rows that it has to match

	MadeReady bool
	Delay     time.Duration  // if > 0, the back-off after which the job is ready
	Failed    bool           // the claim ended without success,
	Cause     backends.Cause // for this reason,
	Dead      bool           // and the job is dead

	// What changes that can run in one statement have in common; see Group.
	queue   *Queue
	write   *write // empty: the change runs alone
	args    []any  // of write
	claim   *lease.Lease
	Grouped bool // a Group runs it
}

// groupable notes what the change has in common with others. u has all but the conditions.
func (c *Change) groupable(u *update, w write) {
	shown := *c.Lease // as it is before the claim ends
	c.write, c.args, c.claim = &w, slices.Clone(u.Args), &shown
}

// Ack ends the claim of a job that is done.
func (q *Queue) Ack(l *lease.Lease, result []byte) (*Change, error) {
	u := q.newUpdate()
	change := &Change{Lease: l, Rows: 1, queue: q}
	c, has := q.Column(mapping.Result)
	if len(result) > 0 && !has {
		return nil, q.unsupported(mapping.Result, noResult)
	}
	if err := mapping.CheckLength(c, string(result)); err != nil {
		return nil, err
	}
	w := write{delete: true}
	if q.OnAck == mapping.Update {
		u.ack(l, result)
		w = u.write()
	}
	if q.OnAck == mapping.Archive {
		change.Before = []*backends.Statement{q.lockClaimed(l), q.copyToArchive(l, result)}
	} else {
		change.groupable(u, w)
	}
	where := u.ShowsClaim(l)
	change.Statement = &backends.Statement{Text: q.byKey(w, where), Args: u.Args}
	l.EndClaim()
	return change, nil
}

// ack sets what a row shows whose job is done.
func (u *update) ack(l *lease.Lease, result []byte) {
	u.setState(backends.StateDone)
	u.setNow(mapping.FinishedAt)
	if c, has := u.Column(mapping.Result); has && result != nil {
		u.set(c, u.ExactValue(c, string(result)))
	}
	if len(l.Failures) > 0 {
		u.setNull(mapping.Error) // of earlier attempts
	}
}

// lockClaimed locks the row while it shows the claim, so that the row that is copied is the row
// that is deleted.
func (q *Queue) lockClaimed(l *lease.Lease) *backends.Statement {
	u := q.newUpdate()
	where := u.ShowsClaim(l)
	return &backends.Statement{Text: q.Dialect.SelectByKey(query.Columns(q.Dialect.ToText("1")), q.SQLName, q.KeyIndex(), where, "", false), Args: u.Args}
}

// copyToArchive copies the row into the archive, as one that is done.
func (q *Queue) copyToArchive(l *lease.Lease, result []byte) *backends.Statement {
	u := q.newUpdate()
	var names, values []string
	for _, name := range q.ArchiveTo.Common {
		value := q.Dialect.Name(name)
		done, hasDone := q.States[backends.StateDone]
		switch c, _ := q.Info.Column(name); {
		case q.IsIn(mapping.State, name) && hasDone:
			value = q.Constant(name, done)
		case q.IsIn(mapping.FinishedAt, name):
			value = q.Now(c)
		case q.IsIn(mapping.Result, name) && result != nil:
			value = u.ExactValue(c, string(result))
		}
		names, values = append(names, q.Dialect.Name(name)), append(values, value)
	}
	for _, c := range q.ArchiveTo.Stamps {
		names, values = append(names, q.Quote(c)), append(values, q.Now(c))
	}
	where := u.ShowsClaim(l)
	return &backends.Statement{
		Text: "INSERT INTO " + q.ArchiveTo.SQLName + " (" + strings.Join(names, ", ") + ") SELECT " + strings.Join(values, ", ") + " FROM " + q.SQLName + " WHERE " + where,
		Args: u.Args,
	}
}

// End ends a claim without success, because of the cause. The contents of d go into the row as far
// as it has columns for them, and otherwise into the lease.
func (q *Queue) End(l *lease.Lease, d backends.Disposition, cause backends.Cause) (*Change, error) {
	return q.end(l, d, cause, false)
}

// EndUndelivered is End for a delivery that the row doesn't show: its transaction is gone.
func (q *Queue) EndUndelivered(l *lease.Lease, d backends.Disposition, cause backends.Cause) (*Change, error) {
	if q.Deliveries {
		l.Attempts-- // the row doesn't count it yet
	}
	return q.end(l, d, cause, true)
}

// Cancel makes a row dead that waits. l keeps why.
func (q *Queue) Cancel(l *lease.Lease) (*Change, error) {
	u := q.newUpdate()
	if u.setState(backends.StateDead) {
		u.setNow(mapping.FinishedAt)
	}
	u.setNow(mapping.FailedAt)
	d := backends.Disposition{
		State: backends.StateDead, Attempts: l.Attempts, Losses: l.Losses, Cause: backends.CauseCancelled, Message: backends.CancelledMessage,
	}
	if err := u.addFailure(l, d); err != nil {
		return nil, err
	}
	l.NotBefore = 0
	change := &Change{Lease: l, Rows: 1, queue: q, Failed: true, Cause: backends.CauseCancelled, Dead: true}
	change.Statement = u.statement(condition.WhileRows(u.Row(l.Item), q.Waiting()))
	return change, nil
}

// CheckCancel returns an error if no row can show that its job is dead. One that removes rows needs no such column.
func (q *Queue) CheckCancel(remove bool) error {
	_, has := q.States[backends.StateDead]
	if remove || has && q.Has(mapping.State) || q.Has(mapping.FailedAt) {
		return nil
	}
	return q.unsupported(mapping.FailedAt, "a cancelled job can't be kept as a dead one, only deleted")
}

func (q *Queue) end(l *lease.Lease, d backends.Disposition, cause backends.Cause, waiting bool) (*Change, error) {
	u := q.newUpdate()
	change := &Change{Lease: l, Rows: 1, queue: q, MadeReady: d.State == backends.StateReady, Failed: true, Cause: cause, Dead: d.State == backends.StateDead}
	if d.State == backends.StateScheduled {
		change.Delay = d.Delay
	}
	if err := u.end(q, l, d); err != nil {
		return nil, err
	}
	var where string
	if waiting {
		where = condition.WhileRows(u.Row(l.Item), q.Waiting())
	} else {
		change.groupable(u, u.write())
		where = u.ShowsClaim(l)
	}
	change.Statement = u.statement(where)
	l.Attempts, l.Losses = d.Attempts, d.Losses
	before := l.Before
	if l.EndClaim(); change.Dead {
		l.Before = before // for the command retry
	}
	return change, nil
}

// end sets what a row shows whose claim ended without success, and keeps the rest in the lease.
func (u *update) end(q *Queue, l *lease.Lease, d backends.Disposition) error {
	dead := d.State == backends.StateDead
	shown := dead && u.setState(backends.StateDead) // the row shows that it is dead
	if shown {
		u.setNow(mapping.FinishedAt)
	} else {
		u.setState(backends.StateReady)
		u.endClaim(l.Before)
	}
	if dead && u.setNow(mapping.FailedAt) {
		shown = true
	}
	q.countAttempts(u, l, d, dead && !shown)
	if d.State == backends.StateScheduled {
		if c, has := q.Column(mapping.RunAt); has {
			u.set(c, u.NowPlus(c, u.Arg(core.MS(d.Delay))))
		} else {
			l.NotBefore = l.Now + core.MS(d.Delay)
		}
	}
	return u.addFailure(l, d)
}

// countAttempts writes the number of attempts into the row, as its owner counts them. unseen: the
// job is dead, and nothing else in the row shows it: the number then does, or else the lease.
func (q *Queue) countAttempts(u *update, l *lease.Lease, d backends.Disposition, unseen bool) {
	l.NotBefore = 0
	c, counted := q.Column(mapping.Attempts)
	more := d.Attempts - l.Attempts
	if !q.Deliveries {
		more++ // the claim added nothing
	}
	switch {
	case counted && unseen:
		u.set(c, fmt.Sprint(max(l.Limit, d.Attempts)))
	case counted && more != 0:
		u.addAttempts(c, more)
	case unseen:
		l.NotBefore = lease.Never
	}
}

// addFailure keeps a failure in the lease and, if it concerns the owner, in the row. The loss of
// a worker or a sidecar does only if it was the last attempt.
func (u *update) addFailure(l *lease.Lease, d backends.Disposition) error {
	if d.Cause == "" {
		return nil
	}
	l.AddFailure(lease.Failure{Attempt: d.Attempts, Cause: d.Cause, Message: d.Message, At: l.Now})
	if d.Cause != backends.CauseNacked && d.State != backends.StateDead {
		return nil
	}
	return u.setError(l.LastError())
}

// Extend renews a claim, and binds it to another worker if e does.
func (q *Queue) Extend(l *lease.Lease, e backends.Extend) *Change {
	u := q.newUpdate()
	claim := u.Claim(l) // as it is before the row changes
	if c, has := q.Column(mapping.Worker); has && e.Bind != 0 {
		if text := workerText(c, e.Worker); l.Shown[mapping.Worker] != text {
			u.set(c, u.Value(c, text))
			l.Shown[mapping.Worker] = text
		}
	}
	switch {
	case e.Bind != 0:
		l.Length, l.Owner, l.Worker = 0, int64(e.Bind), e.Worker
	case e.Lease > 0:
		l.Length = core.MS(e.Lease)
	}
	l.SetDue()
	return &Change{Lease: l, Rows: 1, queue: q, Statement: u.statement(condition.WhileRows(u.Row(l.Item), claim))}
}

// CountDelivery counts a delivery in the row of a job that is claimed in a transaction.
func (q *Queue) CountDelivery(l *lease.Lease) *backends.Statement {
	u := q.newUpdate()
	if c, has := q.Column(mapping.Attempts); has {
		u.addAttempts(c, 1)
	}
	return u.statement(u.ShowsClaim(l))
}
