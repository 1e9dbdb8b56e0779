package postgres

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestUnlikePostgreSQL: products that report a version of PostgreSQL are recognized by the tables of their own. A database with
// a table of that name stands in for the product, which the tests can't run.
func TestUnlikePostgreSQL(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		for sql, name := range map[string]string{
			"CREATE SCHEMA spanner_sys": "Spanner",
			"CREATE SCHEMA sys; CREATE TABLE sys.iam_pg_role_mappings (arn text)": "Aurora DSQL",
			"CREATE SCHEMA sys; CREATE TABLE sys.jobs (id text)":                  "",
		} {
			url := p.Database(t)
			must(t, url, sql)
			s, err := Open(t.Context(), Options{URL: url, ReadOnly: true})
			if err == nil {
				err = s.Close()
			}
			if (err != nil) != (name != "") || err != nil && !strings.Contains(err.Error(), "it is "+name) {
				t.Errorf("%s: got %v, want %q", sql, err, name)
			}
		}
	})
}
