package sqlserver_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlserver"
)

// TestMissingRights checks how the server's answer about rights becomes what the login lacks, and the GRANT for it.
func TestMissingRights(t *testing.T) {
	s, _ := sqlserver.ScriptedStore(t, func(query string) ([]*sqlserver.Answer, error) {
		if !strings.Contains(query, "HAS_PERMS_BY_NAME") {
			return []*sqlserver.Answer{sqlserver.RowOf("app]x")}, nil
		}
		a := &sqlserver.Answer{Columns: make([]string, 3)}
		for _, need := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			has := int64(1)
			if need > "I" && need != "SELECT" { // INSERT and UPDATE
				has = 0
			}
			a.Rows = append(a.Rows, sqlserver.RowOf("[qsidecar].qsidecar_jobs", need, has).Rows[0], sqlserver.RowOf("[qsidecar].qsidecar_keys", need, int64(1)).Rows[0])
		}
		return []*sqlserver.Answer{a}, nil
	})
	all, err := s.MissingRights(t.Context())
	want := []backends.MissingRights{{Object: "qsidecar_jobs", Rights: []string{"INSERT", "UPDATE"}, Target: "[qsidecar].qsidecar_jobs", Login: "[app]]x]"}}
	if err != nil || !cmp.Equal(all, want) {
		t.Fatalf("%+v, %v", all, err)
	}
	if got := all[0].Grant(); got != "GRANT INSERT, UPDATE ON [qsidecar].qsidecar_jobs TO [app]]x]" {
		t.Error(got)
	}
}
