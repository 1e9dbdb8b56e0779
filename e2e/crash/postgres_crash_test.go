package crash

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestPostgresCrashRun also ends connections to the server repeatedly, and crashes the server once.
func TestPostgresCrashRun(t *testing.T) {
	s, p := kit.NewPostgresSite(t)
	crashWithServer(t, s, p, p.KillBackend, p.Jobs)
	if n := strings.Count(p.Log(), "was terminated by signal 9"); n != 1 {
		t.Errorf("a process of the server was killed %d times, want once", n)
	}
}
