package journeys

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// getsSIGPIPE reads the ignored signals of a process. Signals other than SIGPIPE can be ignored: a
// shell's background job and its children ignore SIGINT.
func getsSIGPIPE(t *testing.T, lines []string) bool {
	t.Helper()
	for _, line := range lines {
		if mask, ok := strings.CutPrefix(line, "SigIgn:\t"); ok {
			n, err := strconv.ParseUint(mask, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n&(1<<(syscall.SIGPIPE-1)) == 0
		}
	}
	t.Fatalf("no SigIgn in %q", lines)
	return false
}
