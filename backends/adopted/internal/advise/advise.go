// Package advise describes adopted tables to their operators: how each queue lives in its table,
// what it cannot do, how its claims run, and what would make them cheaper or safer. It is the part
// of `qsidecar check` that is about adopted tables, and what the sidecar logs at its start.
//
// The code that runs queues does not need it. Start reading at Startup and Examine.
package advise

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/lease"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/query"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// Startup is what could be better, as far as the catalogue shows it.
func Startup(queues []*statement.Queue, a backends.Advisor) (found backends.Findings) {
	for _, q := range queues {
		warn(&found, q, a, backends.Plan{})
	}
	return found
}

// Examine describes the queues: facts, warnings, and the plans of their claims. It returns an
// error only if the database cannot be asked.
func Examine(ctx context.Context, engine backends.Engine, queues []*statement.Queue) (found backends.Findings, err error) {
	for _, q := range queues {
		describe(&found, q)
		if st := q.InvalidID(func(item string) {
			why := "is not a value of its column's type"
			if len(item) > condition.MaxID {
				why = fmt.Sprintf("is longer than %d bytes", condition.MaxID)
			}
			found.AddError("table", fmt.Sprintf("the queue %s has a job whose id %s, so no worker gets it: %.60q", q.Queue, why, item),
				"map another unique key in columns.id, or let its own consumers process such jobs")
		}); st != nil {
			if err := engine.Query(ctx, st); err != nil {
				return found, err
			}
		}
		if err := foreignTokens(ctx, engine, q, &found); err != nil {
			return found, err
		}
		if err := localTimes(ctx, engine, q, &found); err != nil {
			return found, err
		}
		if err := notGivenBack(ctx, engine, q, &found); err != nil {
			return found, err
		}
		warn(&found, q, engine, explain(ctx, engine, q, &found))
	}
	return found, nil
}

// describe adds how a queue lives in its table, and what it cannot do without a column for it.
func describe(found *backends.Findings, q *statement.Queue) {
	found.AddInfo("table", fmt.Sprintf("the queue %s lives in the table %s; its jobs are claimed where %s, by %s",
		q.Queue, q.SQLName, query.And(q.Waiting()...), q.OrderBy()))
	for _, err := range q.Unsupported() {
		found.AddInfo("unsupported", fmt.Sprintf("queues.%s: %v", q.Queue, err))
	}
	if q.ClaimInTx {
		found.AddInfo("table", fmt.Sprintf("the queue %s has claim_mode: transaction: only a lock shows that a row is claimed. Its own consumers skip the row, and in stats and peek it is claimed only for the "+
			"sidecar that locked it. Each claimed job takes a connection, up to the database's max_transactions", q.Queue))
	}
	var without []string
	for role, consequence := range map[mapping.Role]string{
		mapping.Payload:   "payload (jobs are delivered without one)",
		mapping.RunAt:     "run_at (only sidecars apply a back-off, and its own consumers ignore it)",
		mapping.Attempts:  "attempts (the sidecar counts its own)",
		mapping.Error:     "error (only sidecars show messages of failures)",
		mapping.ClaimedAt: "claimed_at (no stuck_after)",
	} {
		if !q.Has(role) {
			without = append(without, consequence)
		}
	}
	slices.Sort(without)
	if len(without) > 0 {
		found.AddInfo("table", fmt.Sprintf("the queue %s has no column in the roles %s", q.Queue, strings.Join(without, ", ")))
	}
	if roles := q.ClaimRoles(); len(roles) == 1 && roles[0] == mapping.Worker {
		worker, _ := q.Column(mapping.Worker)
		found.AddInfo("table", fmt.Sprintf("only the column %s distinguishes claims of the queue %s from those of its own consumers: the workers of sidecars need names that its own consumers don't use", worker.Name, q.Queue))
	}
	if !q.Deletes() {
		found.AddInfo("table", fmt.Sprintf("queues.%s: this login lacks DELETE on %s, so the commands delete and purge are refused: %s", q.Queue, q.SQLName, q.Info.Grant("DELETE ON "+q.SQLName)))
	}
}

// unlessNew describes why a query failed. In a database without the sidecar's own tables it names them, and not the query.
func unlessNew(database any, err error) string {
	if d, ok := database.(interface{ Info() backends.Info }); ok && d.Info().Database == "" {
		return ": the first start creates the sidecar's own tables"
	}
	return fmt.Sprintf(": %v", err)
}

// explain adds the plan of the queue's claim.
func explain(ctx context.Context, a backends.Advisor, q *statement.Queue, found *backends.Findings) backends.Plan {
	p, err := a.Explain(ctx, q.LockCandidates(backends.Policy{Queue: q.Queue, MaxAttempts: cmp.Or(q.MaxAttempts, condition.NoLimit)}, 1, statement.Scan{}), q.Info)
	if err != nil {
		found.AddInfo("plan", fmt.Sprintf("queues.%s: can't read the plan of its claim%s", q.Queue, unlessNew(a, err)))
		return backends.Plan{}
	}
	how := ""
	switch {
	case p.Sorts:
		how = ", and sorts what it read"
	case p.Whole:
		how = ", from one end of the table until it finds enough rows"
	}
	found.AddInfo("plan", fmt.Sprintf("queues.%s: the plan of its claim reads %s by %s%s:\n%s", q.Queue, q.SQLName, cmp.Or(p.Index, "no index"), how, strings.Join(p.Lines, "\n")))
	return p
}

// foreignTokens finds rows that show the sidecar's token, and that no sidecar claimed.
func foreignTokens(ctx context.Context, engine backends.Adopter, q *statement.Queue, found *backends.Findings) error {
	var rows []string
	st := q.ForeignTokens(10, func(item string) { rows = append(rows, item) })
	if st == nil {
		return nil
	}
	err := engine.Query(ctx, st)
	switch {
	case err != nil && (backends.Retryable(err) || ctx.Err() != nil):
		return err
	case err != nil: // the sidecar's own tables do not exist yet, as the plan's text reports
		found.AddInfo("token", fmt.Sprintf("queues.%s: can't check whether its own consumers use its token: %v", q.Queue, err))
	case len(rows) > 0:
		found.AddError("token", fmt.Sprintf("queues.%s.token: rows of %s have the sidecar's token in %s, but no sidecar claimed them (%s). Its own consumers use this token too, so they can process a job that a worker has, "+
			"and a late worker can settle a job that they have", q.Queue, q.SQLName, q.Token.Column, strings.Join(rows, " ")),
			"set a value or range for the token that they never use, and make these rows ready if no consumer has them")
	}
	return nil
}

// localTimes warns of columns whose times a clock shows twice a year, or not at all.
func localTimes(ctx context.Context, engine backends.Adopter, q *statement.Queue, found *backends.Findings) error {
	changes := false
	st, columns := q.NoonInLocalTimes(func(january, july, ramadan string) {
		_, unknown := q.Dialect.(backends.HintDialect) // the server shows its present offset alone
		changes = january != july || january != ramadan || unknown && january != "12:00"
	})
	if st == nil {
		return nil
	}
	err := engine.Query(ctx, st)
	if err != nil && (backends.Retryable(err) || ctx.Err() != nil) {
		return err
	}
	if changes {
		found.AddWarning("times", fmt.Sprintf("queues.%s: the columns %s of %s hold local times without a zone. When the clock is set back, it shows an hour twice, and delays, stuck_after and retention can take up to an hour longer",
			q.Queue, strings.Join(columns, ", "), q.SQLName), "store UTC there and set times: utc, or give the columns a type with a zone")
	}
	return nil
}

// notGivenBack finds jobs whose claims ended long ago: something keeps maintenance from giving them back.
func notGivenBack(ctx context.Context, engine backends.Adopter, q *statement.Queue, found *backends.Findings) error {
	var items []string
	n := 0
	st := lease.Overdue(engine.Dialect(), q.Queue, func(item string) {
		if n++; n <= 3 {
			items = append(items, item)
		}
	})
	err := engine.Query(ctx, st)
	switch {
	case err != nil && (backends.Retryable(err) || ctx.Err() != nil):
		return err
	case err != nil: // the sidecar's own tables do not exist yet, as the plan's text reports
		found.AddInfo("maintenance", fmt.Sprintf("queues.%s: can't check whether its ended claims were given back%s", q.Queue, unlessNew(engine, err)))
	case n > 0:
		count := fmt.Sprint(n)
		if n == lease.MostOverdue {
			count = "at least " + count
		}
		found.AddWarning("maintenance", fmt.Sprintf("queues.%s: %s jobs of %s are still claimed although their claims ended more than a minute ago (%s)", q.Queue, count, q.SQLName, strings.Join(items, " ")),
			"run a sidecar; if one runs, `qsidecar status` lists what the database refuses: a unique index, a trigger, a CHECK or a missing right is in the way")
	}
	return nil
}

// warn adds what could be better. plan is the claim's, or empty.
func warn(found *backends.Findings, q *statement.Queue, a backends.Advisor, plan backends.Plan) {
	*found = append(*found, q.Info.Remarks...)
	*found = append(*found, q.Warnings...)
	if len(q.Info.Triggers) > 0 {
		found.AddWarning("triggers", fmt.Sprintf("queues.%s.table: the table %s has the triggers or rules %s, which also run in the sidecar's transactions. "+
			"If one raises an error or skips a row, the sidecar's change is refused", q.Queue, q.SQLName, strings.Join(q.Info.Triggers, ", ")),
			"make sure that they are fast and let sidecars claim and settle rows")
	}
	if len(q.ClaimRoles()) == 0 && !q.ClaimInTx { // with claim_mode: transaction no one else can change the row
		found.AddWarning("table", fmt.Sprintf("queues.%s.columns: nothing in a row distinguishes a claim of the sidecar from one of the table's own consumers: "+
			"if they reset a row that a worker still has, and another consumer claims it, the worker's ack settles that consumer's job", q.Queue),
			"name a column in the role worker or claimed_at, or a token, if the table has one")
	}
	if !served(q, a.RowOrdering(), plan) {
		fixed := q.WaitingColumns()
		found.AddWarning("index", fmt.Sprintf("queues.%s.order: no index of %s begins with the columns that are equal in all ready rows (%s) and continues in the order of claims (%s), so claims get slower as the table grows",
			q.Queue, q.SQLName, strings.Join(condition.Names(fixed), ", "), q.OrderBy()), a.CreateIndex("waiting", q.Info, fixed, q.IndexOrder()))
	}
	for _, r := range q.Retentions() {
		warnRetention(found, r, a)
	}
}

// served reports whether an index has exactly the rows that wait, in the order of claims. The
// server judges the conditions of partial indexes best.
func served(q *statement.Queue, o backends.RowOrdering, plan backends.Plan) bool {
	return slices.ContainsFunc(q.Info.Indexes, func(x backends.Index) bool {
		return q.Serves(x, o) || x.Only != "" && x.Name == plan.Index && !plan.Sorts
	})
}

// warnRetention adds the index that would find expired rows. The index for rows that are done also
// serves for dead ones.
func warnRetention(found *backends.Findings, r statement.Retention, a backends.Advisor) {
	fixed := r.FixedColumns()
	for _, x := range r.Info.Indexes {
		first := slices.IndexFunc(x.Columns, func(c backends.IndexColumn) bool { return !slices.Contains(condition.Names(fixed), c.Name) })
		if x.Only == "" && first >= 0 && x.Columns[first].Name == r.Since.Name {
			return
		}
	}
	found.AddWarning("index", fmt.Sprintf("queues.%s.%s: no index of %s finds the rows that finished long ago, so each search for them can read the whole table",
		r.Queue, r.ConfigKey(), r.SQLName), a.CreateIndex("finished", r.Info, fixed, []backends.IndexColumn{{Name: r.Since.Name}}))
}
