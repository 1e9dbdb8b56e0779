package adopted

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestAdoptedNotify checks that a waiting claim is answered when a table's own producer stores a
// job and notifies, as it always did. It prints the delay.
func TestAdoptedNotify(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	e := adopt.SystemE.Config + "    notify: jobs_ready\n"
	s.Queues = "  e:" + e + "  mail:" + strings.Replace(e, "order: [", "where: {user_id: 7}\n    order: [", 1)
	db := databases.Owners(t, p.URL)
	db.Script(fmt.Sprintf(adopt.SystemE.DDL, 0))
	waits := s.Start("b")
	a, b := s.Start("a").Dial(), waits.Dial()
	testwait.Until(t, "both listen", func() bool {
		return len(db.Texts("SELECT 1::text FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")) == 2
	})
	took := map[string][]time.Duration{}
	round := func(how, queue, begin, end string) {
		t.Helper()
		b.Post(kit.Msg{"op": "claim", "queue": queue, "wait_ms": kit.WaitMS()})
		waits.CaughtUp()
		if begin == "" {
			a.Must(kit.Msg{"op": "enqueue", "queue": queue, "payload": "1"})
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
		began := kit.Monotonic()
		r := b.Next()
		took[how] = append(took[how], kit.Since(began))
		if r.Error != nil || len(r.Jobs) != 1 {
			t.Fatalf("%s: %+v %v", how, r.Jobs, r.Error)
		}
		b.Must(kit.Msg{"op": "ack", "lease": r.Jobs[0].Lease})
	}
	for range 9 {
		round("an INSERT and a NOTIFY", "e", "INSERT INTO my_queue (parameters) VALUES ('1')", "NOTIFY jobs_ready, '{}'")
		round("the same in the other queue of the channel", "mail", "INSERT INTO my_queue (parameters, user_id) VALUES ('1', 7)", "NOTIFY jobs_ready")
		round("an enqueue through another sidecar", "mail", "", "")
	}
	for how, all := range took {
		slices.Sort(all)
		p50 := all[len(all)/2]
		kit.Figure(t, "a claim that waits for a job of an adopted table is answered after %s: p50 %v", how, p50.Round(10*time.Microsecond))
	}
}
