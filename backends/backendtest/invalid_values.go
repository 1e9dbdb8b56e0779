package backendtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// InsertSQL returns an INSERT of a job into queue "q" with the expression as the column's value.
func InsertSQL(table, column, expression string) string {
	names, values := "queue, payload, "+column, "'q', 'odd', "+expression
	switch column {
	case "queue":
		names, values = "queue, payload", expression+", 'odd'"
	case "payload":
		names, values = "queue, payload", "'q', "+expression
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, names, values)
}

// invalidValueTests check values that a sidecar can't use. The database refuses such a value, or
// the sidecar skips the row and reports it. In both cases all other jobs are reaped, promoted,
// shown and claimed.
var invalidValueTests = map[string]func(*kit){
	"RefusedOrSkipped":   func(k *kit) { k.insertInvalidValues(false) },
	"OlderThanTheChecks": func(k *kit) { k.insertInvalidValues(true) },
	"RulesAreNamed": func(k *kit) {
		if len(k.InvalidValues["queue"]) == 0 {
			return // no SQL, or an emulation without the checks
		}
		for _, c := range []struct{ column, value, rule string }{
			{"queue", "'my queue'", "queue: use A-Z a-z 0-9 . _ : / - and do not start with . or -"},
			{"max_attempts", "0", "max_attempts: use a number from 1 to 32767"},
			{"headers", "'[1]'", "headers: use a JSON object with texts as values"},
			{"state", "'done'", "state: leave it out (done and dead need a finished_at)"},
			{"state", "'claimed'", "state: leave it out (done and dead need a finished_at)"},
			{"state", "'waiting'", "state: leave it out (done and dead need a finished_at)"},
		} {
			if err := k.InsertRow(c.column, c.value, false); err == nil || !strings.Contains(err.Error(), c.rule) {
				k.Errorf("a plain INSERT with %s %s gets %v, want the rule: %s", c.column, c.value, err, c.rule)
			}
		}
	},
}

func (k *kit) insertInvalidValues(old bool) {
	stored := true // a refused row leaves the other jobs for the next one
	for _, column := range slices.Sorted(maps.Keys(k.InvalidValues)) {
		for _, expression := range k.InvalidValues[column] {
			if stored {
				k.enqueuePayloads("ended")
				k.commit(k.claimBatch(me, 1, time.Second, policy("q")))
				k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("due"), Delay: time.Second})
			}
			refused := k.InsertRow(column, expression, old)
			k.Logf("%s = %.60s (old: %v): %v", column, expression, old, refused)
			what := fmt.Sprintf("%s = %.60s (old: %v)", column, expression, old)
			if stored = refused == nil; stored {
				k.checkBesideInvalidValue(what)
			} else if shown, _ := k.peekUnfinished(); shown != 1 {
				k.Errorf("%s is refused, but its job is stored: %d shown", what, shown)
			}
		}
	}
}

// checkBesideInvalidValue checks that an invalid row harms no other job, and removes all jobs.
func (k *kit) checkBesideInvalidValue(what string) {
	k.AdvanceClock(time.Minute)
	swept, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 100, Prune: true, Waiting: []string{"q"}})
	if err != nil || swept.Reaped[backends.CauseLeaseEnded] != 1 || swept.Promoted < 1 {
		k.Errorf("%s: maintenance: %+v, %v", what, swept, err)
	}
	// An invalid row must not hide rows that come later.
	k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("later"), Delay: time.Second})
	k.AdvanceClock(2 * time.Second)
	next, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 100, Prune: true})
	if err != nil || next.Promoted != 1 {
		k.Errorf("%s: next maintenance: %+v, %v", what, next, err)
	}
	_, waits := k.peekUnfinished()
	r, err := k.Commit(k.Context(), k.claimBatch(me, 9, 0, policy("q")))
	if err != nil {
		k.Errorf("%s: the claim: %v", what, err)
		r.Claims = make([]backends.ClaimResult, 1)
	}
	given := payloads(r.Claims[0].Jobs)
	if !slices.Contains(given, "ended") || !slices.Contains(given, "due") || !slices.Contains(given, "later") {
		k.Errorf("%s: claimed %q, want the valid jobs too", what, given)
	}
	if extra := len(given) - 3 + int(k.stats().Dead); extra == 0 && !waits && next.Unusable == nil {
		k.Errorf("%s: its job is neither claimed nor reported", what)
	}
	// A second failure must work like the first.
	for range 2 {
		k.writeLosing(backends.Nack{Leases: leasesOf(r.Claims[0].Jobs...), HasDelay: true}, 0)
		r = k.commit(k.claimBatch(me, 9, 0, policy("q")))
	}
	k.writeLosing(backends.Ack{Leases: leasesOf(r.Claims[0].Jobs...)}, 0)
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDead} {
		if _, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Purge, Queue: "q", State: state}); err != nil {
			k.Errorf("%s: purge: %v", what, err)
		}
	}
}

// peekUnfinished peeks at the ready and the scheduled jobs, which must work beside an invalid row.
// It returns how many there are, and whether one is scheduled for a time that can come.
func (k *kit) peekUnfinished() (shown int, waits bool) {
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled} {
		v := k.views(backends.Peek{Queue: "q", State: state, Max: 10})
		shown += len(v)
		waits = waits || slices.ContainsFunc(v, func(v backends.View) bool { return !v.RunAt.IsZero() && v.RunAt.Year() < 9999 })
		if len(v) > 0 {
			k.views(backends.Peek{Queue: "q", State: state, Max: 10, After: v[len(v)-1].ID})
		}
	}
	return shown, waits
}
