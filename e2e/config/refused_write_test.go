package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestOneRefusedWriteAmongMany checks 32 pipelined enqueues and acks of which a trigger of the database refuses
// one. Only that one gets the database's error.
func TestOneRefusedWriteAmongMany(t *testing.T) {
	triggers := map[string]string{
		"enqueue": `CREATE TRIGGER guard BEFORE INSERT ON qsidecar_jobs WHEN CAST(NEW.payload AS TEXT) = 'poison'
			BEGIN SELECT RAISE(ABORT, 'no poison today'); END`,
		"ack": `CREATE TRIGGER guard BEFORE DELETE ON qsidecar_jobs WHEN CAST(OLD.payload AS TEXT) = '7'
			BEGIN SELECT RAISE(ABORT, 'no poison today'); END`,
	}
	for name, trigger := range triggers {
		t.Run(name, func(t *testing.T) {
			s := kit.NewSite(t)
			a := s.Start("a")
			c := a.Dial()
			const half = 16
			ids := c.Enqueue("q", half)
			jobs := c.Must(kit.Msg{"op": "claim", "queue": "q", "max": half}).Jobs
			s.Exec(t, trigger)

			var reqs []kit.Msg
			guilty := ""
			for i, job := range jobs {
				payload := fmt.Sprint("new ", i)
				if name == "enqueue" && i == 5 {
					payload, guilty = "poison", fmt.Sprint("e", i)
				}
				if name == "ack" && job.ID == ids[7] {
					guilty = fmt.Sprint("a", i)
				}
				reqs = append(reqs,
					kit.Msg{"op": "enqueue", "id": fmt.Sprint("e", i), "queue": "new", "payload": payload},
					kit.Msg{"op": "ack", "id": fmt.Sprint("a", i), "lease": job.Lease})
			}
			c.Post(reqs...)
			stored := 0
			for range reqs {
				r := c.Next()
				switch {
				case r.ID == guilty:
					if e := c.WantError("bad_request", guilty, r); !strings.Contains(e.Message, "no poison today") {
						t.Errorf("the refused one gets %q, want the database's error", e.Message)
					}
				case r.Error != nil:
					t.Errorf("%v: %v, though the database has nothing against it", r.ID, r.Error)
				case r.Job != nil:
					stored++
				}
			}
			want := half
			if name == "enqueue" {
				want--
			}
			if got := c.Stats("new").Ready; got != want || stored != want {
				t.Errorf("%d jobs answered ok, %d in the table, want %d", stored, got, want)
			}
			refusedAcks := 0
			if name == "ack" {
				refusedAcks = 1
			}
			if got := c.Stats("q").Claimed; got != refusedAcks {
				t.Errorf("%d jobs are still claimed, want %d", got, refusedAcks)
			}
		})
	}
}
