package sqlserver

import (
	"os"
	"os/exec"
	"testing"
)

// TestTSQL checks every golden file by testdata/tsql: two grammars of T-SQL parse it, all names
// are looked up, the types of comparisons are checked, and this package's rules are applied.
func TestTSQL(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("make check runs this")
	}
	checkTSQL(t)
}

// checkTSQL runs scripts/tsql.sh. With -update it writes the hashes of the texts that
// sqlfluff can parse.
func checkTSQL(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../scripts/tsql.sh", args...)
	if *update {
		cmd.Env = append(os.Environ(), "QSIDECAR_TSQL_UPDATE=1")
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
