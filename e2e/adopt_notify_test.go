package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestAdoptedNotify: a table's own producer stores a job and notifies, as it always
// did, and a claim that waits is answered then, and not at the next look.
func TestAdoptedNotify(t *testing.T) {
	s, p := newPostgresSite(t)
	e := systemE.config + "    notify: jobs_ready\n"
	s.queues = "  e:" + e + "  mail:" + strings.Replace(e, "order: [", "where: {user_id: 7}\n    order: [", 1)
	db := owners(t, p.url)
	db.script(fmt.Sprintf(systemE.ddl, 0))
	a, b := s.started("a").dial(), s.started("b").dial()
	eventually(t, patience, "both listen", func() bool {
		return len(db.texts("SELECT 1::text FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")) == 2
	})
	took := map[string][]time.Duration{}
	round := func(how, queue, begin, end string) {
		t.Helper()
		b.post(msg{"op": "claim", "queue": queue, "wait_ms": 60_000})
		pass(time.Duration(50+rand.IntN(100)) * time.Millisecond) // its first look is over, and the poller's phase is any
		if begin == "" {
			a.must(msg{"op": "enqueue", "queue": queue, "payload": "1"})
		} else {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, statement := range []string{begin, end} {
				if _, err := tx.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		r := b.next()
		took[how] = append(took[how], time.Since(began))
		if r.Error != nil || len(r.Jobs) != 1 {
			t.Fatalf("%s: %+v %v", how, r.Jobs, r.Error)
		}
		b.must(msg{"op": "ack", "lease": r.Jobs[0].Lease})
	}
	for range 9 {
		round("an INSERT and a NOTIFY", "e", "INSERT INTO my_queue (parameters) VALUES ('1')", "NOTIFY jobs_ready, '{}'")
		round("the same in the other queue of the channel", "mail", "INSERT INTO my_queue (parameters, user_id) VALUES ('1', 7)", "NOTIFY jobs_ready")
		round("an enqueue through another sidecar", "mail", "", "")
	}
	for how, all := range took {
		slices.Sort(all)
		p50 := all[len(all)/2]
		figure(t, "a claim that waits for a job of an adopted table is answered after %s: p50 %v", how, p50.Round(10*time.Microsecond))
		if most := 250 * time.Millisecond; p50 > most { // a look comes after 400 ms as often as not
			t.Errorf("%s: p50 is %v, want at most %v", how, p50, most)
		}
	}
}
