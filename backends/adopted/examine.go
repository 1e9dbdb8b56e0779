package adopted

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// Examine implements backends.Examiner: the engine's findings, and what each
// adopted table can and cannot do.
func (s *Store) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	var found backends.Findings
	if e, ok := s.Adopter.(backends.Examiner); ok {
		all, err := e.Examine(ctx, slices.DeleteFunc(slices.Clone(queues), func(p backends.Policy) bool { return s.Adopted(p.Queue) }))
		found = all
		if err != nil {
			return found, err
		}
	} else {
		found.Fact("server", "this engine cannot be examined")
	}
	for _, q := range s.queues() {
		t := s.tables[q]
		t.tell(&found)
		if err := s.tellLong(ctx, t, &found); err != nil {
			return found, err
		}
	}
	return found, nil
}

// tell says how a queue lives in its table, and what it cannot do for want of a
// column.
func (t *table) tell(found *backends.Findings) {
	found.Fact("table", fmt.Sprintf("the queue %s lives in the table %s; its jobs are claimed where %s, by %s",
		t.queue, t.name, strings.Join(t.waits(), " AND "), t.order()))
	var without []string
	for role, cannot := range map[Role]string{
		Payload:   "payload (jobs are delivered without one)",
		Result:    "result (an ack with one is `unsupported`)",
		Priority:  "priority (an enqueue with one is `unsupported`)",
		RunAt:     "run_at (an enqueue with a delay is `unsupported`; a back-off is kept by the sidecar, and its own consumers do not see it)",
		Attempts:  "attempts (the sidecar counts its own)",
		Error:     "error (messages of failures are kept by the sidecar alone)",
		ClaimedAt: "claimed_at (no stuck_after)",
	} {
		if len(t.Columns[role]) == 0 {
			without = append(without, cannot)
		}
	}
	slices.Sort(without)
	if len(without) > 0 {
		found.Fact("table", fmt.Sprintf("the queue %s has no column in the roles %s", t.queue, strings.Join(without, ", ")))
	}
	if err := t.inserts(); err != nil {
		found.Fact("table", err.Error())
	}
	if t.vague() {
		found.Advice("table", fmt.Sprintf("nothing in a row of the queue %s tells a claim of the sidecar from one of the table's own consumers: "+
			"should a cleaner of theirs reset a row that a worker still has, and another consumer take it, the worker's ack would end that one's job", t.queue),
			"name a column in the role worker or claimed_at, or a token, where the table has one")
	}
}

// tellLong looks for a job whose id is longer than one may be.
func (s *Store) tellLong(ctx context.Context, t *table, found *backends.Findings) error {
	short := t.short()
	if short == "" {
		return nil
	}
	where := strings.Join(append(t.waits(), "NOT ("+short+")"), " AND ")
	return s.Ask(ctx, &backends.Statement{
		Text: t.g.First(outputs(t.keyTexts()...), t.name, where, "", "1"),
		Row: func(cells [][]byte) error {
			found.Problem("table", fmt.Sprintf("the queue %s has a job whose id is longer than %d bytes, so that no worker gets it: %.60q…", t.queue, maxID, t.item(cells)),
				"map another unique key in columns.id, or have its own consumers do such jobs")
			return nil
		},
	})
}

// vague: our claims look like anybody's.
func (t *table) vague() bool {
	for _, role := range []Role{Worker, ClaimedAt, token} {
		if _, has := t.one[role]; has {
			return false
		}
	}
	return true
}
