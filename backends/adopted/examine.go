package adopted

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// Examine implements backends.Examiner: the engine's findings, and what each
// adopted table can and cannot do.
func (s *Store) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	all, err := s.Adopter.Examine(ctx, slices.DeleteFunc(slices.Clone(queues), func(p backends.Policy) bool { return s.Adopted(p.Queue) }))
	if err != nil {
		return all, err
	}
	found := backends.Findings(all)
	for _, q := range s.queues() {
		t := s.tables[q]
		t.tell(&found)
		if err := s.tellLong(ctx, t, &found); err != nil {
			return found, err
		}
		if err := s.tellOthers(ctx, t, &found); err != nil {
			return found, err
		}
		t.advise(&found, s.Adopter, s.explain(ctx, t, &found))
	}
	return found, nil
}

// explain tells the plan of the real claim statement.
func (s *Store) explain(ctx context.Context, t *table, found *backends.Findings) backends.Plan {
	p, err := s.Explain(ctx, t.looking(backends.Policy{Queue: t.queue, MaxAttempts: cmp.Or(t.MaxAttempts, noLimit)}, 1), t.info)
	if err != nil {
		found.AddInfo("plan", fmt.Sprintf("queues.%s: the claim's plan cannot be asked for, as before the first start, which makes the sidecar's own tables: %v", t.queue, err))
		return backends.Plan{}
	}
	how := ""
	switch {
	case p.Sorts:
		how = ", and sorts what it read"
	case p.Whole:
		how = ", from one end of the table to where it has found enough"
	}
	found.AddInfo("plan", fmt.Sprintf("queues.%s: the plan of its claim reads %s by %s%s:\n%s", t.queue, t.name, cmp.Or(p.Index, "no index"), how, strings.Join(p.Lines, "\n")))
	return p
}

// tell says how a queue lives in its table, and what it cannot do for want of a
// column.
func (t *table) tell(found *backends.Findings) {
	found.AddInfo("table", fmt.Sprintf("the queue %s lives in the table %s; its jobs are claimed where %s, by %s",
		t.queue, t.name, strings.Join(t.waits(), " AND "), t.order()))
	for _, err := range t.cannot() {
		found.AddInfo("unsupported", fmt.Sprintf("queues.%s: %v", t.queue, err))
	}
	if t.Hold {
		found.AddInfo("table", fmt.Sprintf("the queue %s has hold: transaction: a row that is worked on is locked, and says nothing; its own consumers pass over it, and it cannot be told from "+
			"one that waits but by who holds it. As many are held at a time as the database's max_held, with a connection each", t.queue))
	}
	var without []string
	for role, so := range map[Role]string{
		Payload:   "payload (jobs are delivered without one)",
		RunAt:     "run_at (a back-off is kept by the sidecar, and its own consumers do not see it)",
		Attempts:  "attempts (the sidecar counts its own)",
		Error:     "error (messages of failures are kept by the sidecar alone)",
		ClaimedAt: "claimed_at (no stuck_after)",
	} {
		if len(t.Columns[role]) == 0 {
			without = append(without, so)
		}
	}
	slices.Sort(without)
	if len(without) > 0 {
		found.AddInfo("table", fmt.Sprintf("the queue %s has no column in the roles %s", t.queue, strings.Join(without, ", ")))
	}
	if shown := t.showing(); len(shown) == 1 && shown[0] == Worker {
		found.AddInfo("table", fmt.Sprintf("the queue %s tells its claims from those of its own consumers by the column %s alone: its workers need names that they do not use", t.queue, t.one[Worker].Name))
	}
	if slices.Contains(t.info.Denied, "DELETE") {
		found.AddInfo("table", fmt.Sprintf("queues.%s: this login lacks DELETE on %s: the commands delete and purge are refused", t.queue, t.name))
	}
}

// tellLong looks for a job whose id is longer than one may be.
func (s *Store) tellLong(ctx context.Context, t *table, found *backends.Findings) error {
	short := t.short()
	if short == "" {
		return nil
	}
	where := strings.Join(append(t.waits(), "NOT ("+short+")"), " AND ")
	return s.Query(ctx, &backends.Statement{
		Text: t.g.SelectFirst(outputs(t.keyTexts()...), t.name, where, "", "1"),
		Row: func(cells [][]byte) error {
			found.AddError("table", fmt.Sprintf("the queue %s has a job whose id is longer than %d bytes, so that no worker gets it: %.60q…", t.queue, maxID, t.item(cells)),
				"map another unique key in columns.id, or have its own consumers do such jobs")
			return nil
		},
	})
}

// tellOthers looks for rows that show the sidecar's token, and that no sidecar claimed.
func (s *Store) tellOthers(ctx context.Context, t *table, found *backends.Findings) error {
	c, has := t.one[token]
	if !has {
		return nil
	}
	ours := t.g.Name(c.Name) + " BETWEEN " + t.g.Constant(fmt.Sprint(t.Token.From), c) + " AND " + t.g.Constant(fmt.Sprint(t.Token.To), c)
	if t.Token.Text != "" {
		ours = t.is(c.Name, Value{Text: t.Token.Text})
	}
	where := append(t.inQueue(), t.taken()...)
	where = append(where, ours, "NOT "+t.remembered("l.token_host IS NOT NULL"))
	var rows []string
	err := s.Query(ctx, &backends.Statement{
		Text: t.g.SelectFirst(outputs(t.keyTexts()...), t.name, strings.Join(where, " AND "), "", "10"),
		Row:  func(cells [][]byte) error { rows = append(rows, t.item(cells)); return nil },
	})
	switch {
	case err != nil && (backends.Retryable(err) || ctx.Err() != nil):
		return err
	case err != nil: // there are no tables of the sidecar's own yet; the plan says so
		found.AddInfo("token", fmt.Sprintf("queues.%s: whether others use its token cannot be asked: %v", t.queue, err))
	case len(rows) > 0:
		found.AddError("token", fmt.Sprintf("queues.%s.token: rows of %s show in %s what is the sidecar's, and no sidecar has claimed them (%s): its own consumers use it, too, so that they work what a worker has, "+
			"and a worker that comes too late could settle what they have", t.queue, t.name, c.Name, strings.Join(rows, " ")),
			"give the token a value or a range that they never use; rows that nobody works on are to be made ready by hand")
	}
	return nil
}

// showing are the roles in which a row shows whose claim it is.
func (t *table) showing() (roles []Role) {
	for _, role := range []Role{Worker, ClaimedAt, token} {
		if _, has := t.one[role]; has {
			roles = append(roles, role)
		}
	}
	return roles
}
