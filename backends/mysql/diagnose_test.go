package mysql_test

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/backends/mysql/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestExamine breaks a database and expects the findings with their fixes.
func TestExamine(t *testing.T) {
	mysql.Everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		_, name := mysql.Crowded(t, m)
		examine := func(url string) map[string]backends.Finding {
			t.Helper()
			x := mysql.OpenStore(t, mysql.Options{URL: url, ReadOnly: true})
			all, err := diagnose.New(x).Examine(t.Context(), []backends.Policy{{Queue: "q"}})
			if err != nil {
				t.Fatal(err)
			}
			worst := map[string]backends.Finding{}
			for _, f := range all {
				if f.Text == "" || f.Severity != backends.SeverityInfo && f.Fix == "" {
					t.Errorf("%+v lacks a text or a fix", f)
				}
				if was, ok := worst[f.Topic]; !ok || was.Severity < f.Severity {
					worst[f.Topic] = f
				}
			}
			return worst
		}
		healthy := examine(m.URL(name))
		for _, topic := range []string{"server", "schema", "rights", "plan", "isolation", "binlog", "packets", "connections", "clock"} {
			if f, ok := healthy[topic]; !ok || f.Severity != backends.SeverityInfo {
				t.Errorf("%s: %+v, want a fact", topic, f)
			}
		}
		if f := healthy["durability"]; f.Severity != backends.SeverityWarning || !strings.Contains(f.Text, "innodb_flush_log_at_trx_commit") {
			t.Errorf("a server that does not sync: %+v", f)
		}
		if f := healthy["claim"]; (f.Severity == backends.SeverityInfo) != (m.Kind != testserver.MariaDB105) {
			t.Errorf("%+v", f)
		}
		mysql.Must(t, m, name, "CREATE TRIGGER strange BEFORE INSERT ON qsidecar_jobs FOR EACH ROW SET @x = 1",
			"ALTER TABLE qsidecar_jobs DROP INDEX qsidecar_segments")
		limited := examine(mysql.Login(t, m, name, "GRANT SELECT ON "+name+".* TO {user}", "GRANT INSERT ON "+name+".qsidecar_jobs TO {user}"))
		if f := limited["rights"]; f.Severity != backends.SeverityError || !strings.Contains(f.Text, "DELETE ON qsidecar_jobs") || strings.Contains(f.Text, "INSERT ON qsidecar_jobs") {
			t.Errorf("%+v", f)
		}
		broken := examine(m.URL(name))
		if f := broken["triggers"]; f.Severity != backends.SeverityWarning || !strings.Contains(f.Text, "strange") {
			t.Errorf("%+v", f)
		}
		if f := broken["plan"]; f.Severity != backends.SeverityError || !strings.Contains(f.Fix, "ADD INDEX") {
			t.Errorf("%+v", f)
		}
		if f := examine(m.URL(m.Database(t)))["schema"]; f.Severity != backends.SeverityInfo || !strings.Contains(f.Text, "missing") {
			t.Errorf("without tables: %+v", f)
		}
	})
}
