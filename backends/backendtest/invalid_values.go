package backendtest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// PlainRow is an INSERT of a job into queue "q" that has the expression in the column.
func PlainRow(table, column, expression string) string {
	names, values := "queue, payload, "+column, "'q', 'odd', "+expression
	switch column {
	case "queue":
		names, values = "queue, payload", expression+", 'odd'"
	case "payload":
		names, values = "queue, payload", "'q', "+expression
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, names, values)
}

// odd: a value that a sidecar cannot use is refused, or its row is passed over and
// reported. In any case the other jobs are reaped, promoted, shown and given.
var odd = map[string]func(*kit){
	"Inserted":          func(k *kit) { k.oddValues(false) },
	"InsertedLongSince": func(k *kit) { k.oddValues(true) },
}

func (k *kit) oddValues(old bool) {
	for _, column := range slices.Sorted(maps.Keys(k.Odd)) {
		for _, expression := range k.Odd[column] {
			k.oddValue(column, expression, old)
		}
	}
}

func (k *kit) oddValue(column, expression string, old bool) {
	k.put("ended")
	k.commit(k.claims(me, 1, time.Second, policy("q")))
	k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("due"), Delay: time.Second})
	refused := k.Plain(column, expression, old)
	k.Shift(time.Minute)
	what := fmt.Sprintf("%s = %.60s (old: %v, refused: %v)", column, expression, old, refused != nil)
	swept, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 100, Prune: true, Waiting: []string{"q"}})
	if err != nil || swept.Reaped[backends.CauseLeaseEnded] != 1 || swept.Promoted < 1 || refused != nil && swept.Unusable != nil {
		k.Errorf("%s: the sweep says %+v, %v", what, swept, err)
	}
	// What was stored before must not hide what comes later.
	k.enqueue(backends.NewJob{Queue: "q", Payload: []byte("later"), Delay: time.Second})
	k.Shift(2 * time.Second)
	next, err := k.Maintain(k.Context(), backends.Maintenance{Limit: 100, Prune: true})
	if err != nil || next.Promoted != 1 {
		k.Errorf("%s: the next sweep says %+v, %v", what, next, err)
	}
	shown, waits := 0, false // waits: for a time that will come
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled} {
		v, err := k.inspector().Peek(k.Context(), backends.Peek{Queue: "q", State: state, Max: 10})
		if err != nil {
			k.Errorf("%s: %s jobs are not shown: %v", what, state, err)
		}
		shown += len(v)
		waits = waits || slices.ContainsFunc(v, func(v backends.View) bool { return !v.RunAt.IsZero() && v.RunAt.Year() < 9999 })
		if len(v) > 0 {
			if _, err := k.inspector().Peek(k.Context(), backends.Peek{Queue: "q", State: state, Max: 10, After: v[len(v)-1].ID}); err != nil {
				k.Errorf("%s: no %s jobs are shown after the last: %v", what, state, err)
			}
		}
	}
	if _, err := k.inspector().Stats(k.Context(), "q"); err != nil {
		k.Errorf("%s: stats: %v", what, err)
	}
	r, err := k.Commit(k.Context(), k.claims(me, 9, 0, policy("q")))
	if err != nil {
		k.Errorf("%s: the claim: %v", what, err)
		r.Claims = make([]backends.ClaimResult, 1)
	}
	given := payloads(r.Claims[0].Jobs)
	if !slices.Contains(given, "ended") || !slices.Contains(given, "due") || !slices.Contains(given, "later") {
		k.Errorf("%s: %q are given, without the others", what, given)
	}
	st := k.stats()
	switch extra := len(given) - 3 + int(st.Dead); {
	case refused != nil && (extra > 0 || shown != 3):
		k.Errorf("%s: its job is there: %q are given, %d are dead, %d are shown", what, given, st.Dead, shown)
	case refused == nil && extra == 0 && !waits && next.Unusable == nil:
		k.Errorf("%s: its job is neither given nor reported", what)
	}
	// Its second failure must be as good as its first.
	for range 2 {
		k.settle(backends.Nack{Leases: each(r.Claims[0].Jobs...), HasDelay: true}, 0)
		r = k.commit(k.claims(me, 9, 0, policy("q")))
	}
	k.settle(backends.Ack{Leases: each(r.Claims[0].Jobs...)}, 0)
	for _, state := range []backends.State{backends.StateReady, backends.StateScheduled, backends.StateDead} {
		if _, _, err := k.inspector().Command(k.Context(), backends.Command{Kind: backends.Purge, Queue: "q", State: state}); err != nil {
			k.Errorf("%s: purge: %v", what, err)
		}
	}
}
