package sqlserver

import (
	"os/exec"
	"testing"
)

// TestTSQL has two grammars of T-SQL read every golden file, all names looked up, all
// types compared and this package's rules applied: testdata/tsql.
func TestTSQL(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "../../scripts/tsql.sh").CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
