package advise

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

const (
	waitingRows = 1000            // that are sampled
	trialTime   = 5 * time.Second // for each part of a queue's trial
)

// Try reports what rows that wait show, and what the table's constraints refuse of what sidecars do. The server itself
// evaluates the constraints, of rows as a claim or a settle would leave them. It changes nothing. It also reports rows that are
// larger than maxPayload bytes; 0: no limit.
func Try(ctx context.Context, engine backends.Adopter, queues []*statement.Queue, maxPayload int64) (found backends.Findings, err error) {
	for _, q := range queues {
		t := &trying{engine: engine, q: q, found: &found}
		err := t.part(ctx, "what the constraints of "+q.SQLName+" refuse", t.run)
		if err == nil && maxPayload > 0 {
			err = t.part(ctx, "which rows of "+q.SQLName+" are too large", func(ctx context.Context) error { return t.large(ctx, maxPayload) })
		}
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// part runs a part of the queue's trial, for a bounded time. The error is the database's.
func (t *trying) part(ctx context.Context, what string, look func(context.Context) error) error {
	short, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	err := look(short)
	if err != nil && ctx.Err() == nil && (short.Err() != nil || !backends.Retryable(err)) {
		t.found.AddInfo("constraints", fmt.Sprintf("queues.%s: can't find out %s: %v", t.q.Queue, what, err))
		err = nil
	}
	return err
}

// trying is what Try does for one queue.
type trying struct {
	engine backends.Adopter
	q      *statement.Queue
	found  *backends.Findings
	rows   bool // there are rows that wait
}

func (t *trying) run(ctx context.Context) error {
	var s statement.WaitingSample
	if err := t.engine.Query(ctx, t.q.SampleWaiting(waitingRows, cmp.Or(t.q.MaxAttempts, condition.NoLimit), &s)); err != nil {
		return err
	}
	t.waiting(s)
	t.claimsElsewhere()
	var items []string
	if len(t.q.Info.Constraints) == 0 {
		return nil
	}
	if err := t.engine.Query(ctx, t.q.WaitingItems(func(item string) { items = append(items, item) })); err != nil {
		return err
	}
	t.rows = len(items) > 0
	trials, err := t.q.Trials(items)
	if err != nil {
		return err
	}
	for _, k := range t.q.Info.Constraints {
		if err := t.constraint(ctx, k, trials); err != nil {
			return err
		}
	}
	return nil
}

// effect is what a constraint refuses of a step.
type effect struct {
	doing      string
	rows, meet int64
}

// constraint reports what it refuses of the steps. If the server can't evaluate one of them, or the time is over, the others still count.
func (t *trying) constraint(ctx context.Context, k backends.Constraint, trials []*statement.Trial) error {
	var all []effect
	defer func() {
		if len(all) > 0 {
			t.report(k, all)
		}
	}()
	for _, trial := range trials {
		st := t.statement(k, trial, func(rows, meet int64) {
			if meet > 0 {
				all = append(all, effect{trial.Doing, rows, meet})
			}
		})
		if st == nil {
			continue
		}
		if err := t.engine.Query(ctx, st); err != nil {
			if ctx.Err() != nil || backends.Retryable(err) {
				return err
			}
			t.found.AddInfo("constraints", fmt.Sprintf("queues.%s: can't evaluate the constraint %s of %s for each %s%s", t.q.Queue, k.Name, t.q.SQLName, trial.Doing, unlessNew(t.engine, err)))
		}
	}
	return nil
}

// statement counts the rows that the constraint refuses, or for a unique key can refuse. nil: it can't concern the step.
func (t *trying) statement(k backends.Constraint, trial *statement.Trial, f func(rows, meet int64)) *backends.Statement {
	texts := append(slices.Clone(k.Columns), k.Text)
	switch k.Kind {
	case backends.CheckConstraint:
		if trial.Deletes || !trial.Writes(k.Text) {
			return nil
		}
		violated := "CASE WHEN NOT (" + k.Text + ") THEN 1 ELSE 0 END"
		return trial.Count("qsidecar_was0 = 0 AND NOT ("+k.Text+")", []string{violated}, f)
	case backends.ForeignKey:
		if trial.Deletes || !trial.Writes(texts...) {
			return nil
		}
		return trial.Count(present(k.Columns)+" AND NOT "+related(k), nil, f)
	case backends.ReferencedBy:
		if !trial.Deletes || k.Cascades {
			return nil
		}
		return trial.Count(related(k), nil, f)
	}
	if trial.Deletes || !trial.Writes(texts...) {
		return nil
	}
	inside := cmp.Or(k.Text, "1 = 1")
	before := append([]string{"CASE WHEN " + inside + " THEN 1 ELSE 0 END"}, k.Columns...)
	moved := "qsidecar_was0 = 0"
	for i, c := range k.Columns {
		if trial.Writes(c) {
			moved += fmt.Sprintf(" OR qsidecar_was%d IS NULL OR qsidecar_was%[1]d <> %s", i+1, c)
		}
	}
	condition := "(" + inside + ") AND (" + moved + ")"
	if t.rows || k.Text == "" {
		condition += " AND " + present(k.Columns)
	}
	return trial.Count(condition, before, f)
}

// present is the condition that all columns of a key have values.
func present(columns []string) string {
	all := make([]string, len(columns))
	for i, c := range columns {
		all[i] = "x." + c + " IS NOT NULL"
		if strings.ContainsAny(c, "() ") {
			all[i] = c + " IS NOT NULL"
		}
	}
	return strings.Join(all, " AND ")
}

// related is the condition that the other table of a foreign key has a row for this one.
func related(k backends.Constraint) string {
	all := make([]string, len(k.Columns))
	for i, c := range k.Columns {
		all[i] = "k." + k.Others[i] + " = x." + c
	}
	return "EXISTS (SELECT 1 FROM " + k.Table + " k WHERE " + strings.Join(all, " AND ") + ")"
}

// report reports the effects of a constraint.
func (t *trying) report(k backends.Constraint, all []effect) {
	var always, sometimes []string
	for _, e := range all {
		switch {
		case k.Kind != backends.UniqueKey && e.meet == e.rows:
			always = append(always, e.doing)
		case k.Kind == backends.UniqueKey || !t.rows:
			sometimes = append(sometimes, e.doing)
		default:
			sometimes = append(sometimes, fmt.Sprintf("%s (of %d of %d sampled jobs)", e.doing, e.meet, e.rows))
		}
	}
	name := fmt.Sprintf("queues.%s.table: the constraint %s of %s", t.q.Queue, k.Name, t.q.SQLName)
	var what, fix string
	switch k.Kind {
	case backends.CheckConstraint:
		what = fmt.Sprintf(" (CHECK %s)", shortened(k.Text))
		fix = t.unwritten(k.Text)
	case backends.ForeignKey:
		what = fmt.Sprintf(" (%s is a key of %s)", strings.Join(k.Columns, ", "), k.Table)
		fix = "remove the role of the column, or store what sidecars write in " + k.Table
	case backends.ReferencedBy:
		what = fmt.Sprintf(" (rows of %s refer to this table's)", k.Table)
		fix = "set on_ack to a state, or let the foreign key delete such rows (ON DELETE CASCADE)"
	default:
		what = fmt.Sprintf(" (unique %s%s)", strings.Join(k.Columns, ", "), map[bool]string{true: " WHERE " + shortened(k.Text)}[k.Text != ""])
	}
	if len(always) > 0 {
		t.found.AddError("constraints", name+what+" refuses each "+strings.Join(always, ", each "), fix)
	}
	switch {
	case len(sometimes) == 0:
	case k.Kind == backends.UniqueKey:
		t.found.AddWarning("constraints", name+what+" can refuse a "+strings.Join(sometimes, ", a ")+", while another row has the same values. Such a job waits until the other row is gone",
			"check that the owner of the table intends this; status shows such jobs as obstacles")
	default:
		t.found.AddWarning("constraints", name+what+" refuses a "+strings.Join(sometimes, ", a "), fix)
	}
}

// unwritten is advice about a CHECK: the columns that it mentions and that no role has.
func (t *trying) unwritten(text string) string {
	var free []string
	for _, c := range t.q.Info.Columns {
		if statement.Mentions(text, c.Name) && !t.q.Names(c.Name) {
			free = append(free, c.Name)
		}
	}
	if len(free) == 0 {
		return "name other values or columns in the queue's mapping, or change the constraint"
	}
	return "give a role to " + strings.Join(free, ", ") + " (such as finished_at), name other states, or change the constraint"
}

func shortened(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > 200 {
		return string(runes[:200]) + "…"
	}
	return text
}
