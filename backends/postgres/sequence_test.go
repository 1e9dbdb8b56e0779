package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestSequenceBehindTheIDs: a switch by logical replication leaves a sequence that is behind the ids. No job is refused or gets an id
// that something names, whether the Store is opened then, finds its sessions ended, or learns it from an error.
func TestSequenceBehindTheIDs(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		for _, way := range []string{"Direct", "ThroughAPooler", "WithoutTheRight"} {
			for _, when := range []string{"AtTheStart", "AtAReconnect", "AtTheError"} {
				if when == "AtAReconnect" && way == "ThroughAPooler" {
					continue // it hides the reconnect; the epoch or the error shows the switch
				}
				t.Run(way+when, func(t *testing.T) {
					t.Parallel()
					role := "usual_" + strings.ToLower(when)
					if way == "WithoutTheRight" {
						t.Cleanup(func() { // after the database is dropped
							if err := p.Exec(context.Background(), "DROP ROLE "+role); err != nil {
								t.Error(err)
							}
						})
					}
					direct := filled(t, p)
					url := direct
					switch way {
					case "ThroughAPooler":
						var err error
						if url, err = poolers[p].URL(direct); err != nil {
							t.Fatal(err)
						}
					case "WithoutTheRight":
						must(t, direct, strings.ReplaceAll(`CREATE ROLE {r} LOGIN; GRANT USAGE ON SCHEMA qsidecar TO {r}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA qsidecar TO {r};
							GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA qsidecar TO {r}`, "{r}", role))
						url = as(t, direct, role)
					}
					both := []*Store{open(t, Options{URL: url}), open(t, Options{URL: url})}
					fill(t, both[0], 20)
					must(t, direct, `INSERT INTO qsidecar.qsidecar_keys (queue, key, job, expires_at, state) VALUES ('q', 'gone', 1040, now() + interval '1 day', 'done');
						SELECT setval('qsidecar.qsidecar_sequence', 1, false)`)
					switch when {
					case "AtTheStart":
						both = []*Store{open(t, Options{URL: url}), open(t, Options{URL: url})}
					case "AtAReconnect":
						must(t, direct, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
					}
					var mu sync.Mutex
					ids := map[string]bool{}
					var wg sync.WaitGroup
					for i, s := range both {
						wg.Go(func() {
							for n := range 20 {
								r, err := s.Commit(t.Context(), backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}, {Queue: "q", Key: fmt.Sprint(i, n)}}}}})
								if err != nil {
									t.Errorf("enqueue: %v", err)
									return
								}
								mu.Lock()
								for _, j := range r.Writes[0].Stored {
									if id, _ := strconv.Atoi(j.ID); id <= 1040 || ids[j.ID] {
										t.Errorf("the id %s is used already", j.ID)
									}
									ids[j.ID] = true
								}
								mu.Unlock()
							}
						})
					}
					wg.Wait()
				})
			}
		}
	})
}
