package adopted_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	backend "github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/backends/mysql/diagnose"
)

// TestRightsOnMySQL: a right that the login lacks on the table or on a column is a misfit if the queue
// needs it. Rights that come with a role count.
func TestRightsOnMySQL(t *testing.T) {
	onEach(t, func(t *testing.T, p *product) {
		if p.name == "PostgreSQL" {
			return // TestRights
		}
		k := p.newKit(t, "CREATE TABLE jobs (id int PRIMARY KEY, s varchar(9), v varchar(9), made int GENERATED ALWAYS AS (id) STORED)", nil)
		u, err := url.Parse(k.url)
		if err != nil {
			t.Fatal(err)
		}
		db := strings.TrimPrefix(u.Path, "/")
		clerk, role := "c_"+db, "r_"+db
		for _, sql := range []string{"DROP USER IF EXISTS %s", "CREATE USER %s IDENTIFIED BY 'x'", "DROP ROLE IF EXISTS " + role, "CREATE ROLE " + role, "GRANT " + role + " TO %s"} {
			k.sql(strings.ReplaceAll(sql, "%s", clerk))
		}
		t.Cleanup(func() {
			for _, sql := range []string{"DROP USER " + clerk, "DROP ROLE " + role} {
				if _, err := k.db.Exec(sql); err != nil { // t.Context has ended
					t.Error(err)
				}
			}
		})
		own, err := texts(t.Context(), k.conn, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'qsidecar%'")
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range own {
			k.sql(fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.%s TO %s", db, table, clerk))
		}
		u.User = url.UserPassword(clerk, "x")
		m := on("s", "waiting", "taken")
		for _, step := range []struct{ grant, want string }{
			{"", "queues.q.table: there is no table jobs"},
			{"GRANT SELECT (id, v), DELETE ON jobs TO " + clerk, "queues.q.columns.state: the table has no column s: did you mean v? It has id, v"},
			{"GRANT SELECT ON jobs TO " + clerk, "queues.q.table: this login lacks UPDATE on it: GRANT UPDATE ON `" + db + "`.`jobs` TO '" + clerk + "'@'%'"},
			{"GRANT UPDATE (v) ON jobs TO " + clerk, "queues.q.table: this login lacks UPDATE on its column s: GRANT UPDATE (`s`) ON "},
			{"GRANT UPDATE ON jobs TO " + role, "queues.q.table: this login lacks UPDATE on its column s: "}, // the role is not active
			{"SET DEFAULT ROLE " + role + " %s " + clerk, ""},
		} {
			if step.grant != "" {
				of := "TO"
				if strings.HasPrefix(p.name, "MariaDB") {
					of = "FOR"
				}
				k.sql(strings.ReplaceAll(step.grant, "%s", of))
			}
			engine, err := backend.Open(t.Context(), backend.Options{URL: u.String()})
			if err != nil {
				t.Fatal(err)
			}
			_, wrong, err := adopted.Check(t.Context(), diagnose.New(engine), map[string]mapping.Table{"q": m})
			if err != nil {
				t.Fatal(err)
			}
			if err := engine.Close(); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, w := range wrong {
				got += w.Error() + "\n"
			}
			if step.want == "" && got != "" || !strings.Contains(got, step.want) {
				t.Errorf("%s: %q, want %q", step.grant, got, step.want)
			}
		}
	})
}
