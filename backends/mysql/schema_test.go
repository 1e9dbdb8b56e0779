package mysql

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestUpgrade checks that Open and the printed script complete the tables of the previous version. A
// program of that version can still use them.
func TestUpgrade(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		for by, upgrade := range map[string]func(t *testing.T, name string){
			"start": func(t *testing.T, name string) { open(t, Options{URL: m.URL(name)}) },
			"hand": func(t *testing.T, name string) {
				c := connect(t, m, name)
				for _, sql := range migrate.Statements(migrate.SQL(DatabaseOf(m.URL(name)), "", 1)) {
					if !strings.HasPrefix(sql, "GRANT") {
						runSQL(t, c, sql)
					}
				}
			},
		} {
			t.Run(by, func(t *testing.T) {
				t.Parallel()
				name := m.Database(t)
				c := connect(t, m, name)
				for _, sql := range migrate.Statements(migrate.Step(1)) {
					runSQL(t, c, sql)
				}
				runSQL(t, c, "INSERT INTO qsidecar_jobs (queue, payload) VALUES ('q', 'before')")
				upgrade(t, name)
				if n := numberOf(t, m, name, "SELECT version * 10 + min_program FROM qsidecar_meta"); n != 21 {
					t.Errorf("version and program are %d", n)
				}
				if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_leases"); n != 0 {
					t.Errorf("%d leases", n)
				}
				s := open(t, Options{URL: m.URL(name)})
				join(t, s, 1)
				if jobs := claimJobs(t, s, 1, 2, 1); len(jobs) != 1 || string(jobs[0].Payload) != "before" {
					t.Errorf("%+v", jobs)
				}
			})
		}
	})
}
