package mysql

import (
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestTruncatedJobs: a clean-up truncates the jobs and not what names them, which sets AUTO_INCREMENT back. No id is used twice,
// whether the Store is opened then or runs.
func TestTruncatedJobs(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		for name, again := range map[string]func(t *testing.T, o Options, s *Store) *Store{
			"opened then": func(t *testing.T, o Options, _ *Store) *Store { return open(t, o) },
			"running": func(t *testing.T, _ Options, s *Store) *Store {
				for range 2 * tidyEvery {
					if err := (access{s}).Tidy(t.Context(), 100); err != nil {
						t.Fatal(err)
					}
				}
				return s
			},
		} {
			for table, row := range map[string]string{
				"keys":     "INSERT INTO qsidecar_keys (queue, `key`, job, expires_at, state) VALUES ('q', 'gone', 1040, UTC_TIMESTAMP() + INTERVAL 1 DAY, 'done')",
				"failures": "INSERT INTO qsidecar_failures (job, fence, attempt, cause, message, at) VALUES (1040, 1, 1, 'nacked', '', UTC_TIMESTAMP())",
			} {
				t.Run(name+" "+table, func(t *testing.T) {
					t.Parallel()
					base := m.Database(t)
					o := Options{URL: m.URL(base)}
					s := open(t, o)
					fillBy(t, s, 3, 3)
					must(t, m, base, "TRUNCATE qsidecar_jobs", row)
					s = again(t, o, s)
					fillBy(t, s, 3, 3)
					if n := numberOf(t, m, base, "SELECT MIN(id) FROM qsidecar_jobs"); n <= 1040 {
						t.Errorf("a new job has the id %d", n)
					}
				})
			}
		}
	})
}
