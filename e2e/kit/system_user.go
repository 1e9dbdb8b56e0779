package kit

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// SystemUser is a system user who connects in a real process with this user and these groups.
type SystemUser struct {
	UID, GID int
	Groups   string // supplementary groups, as setpriv takes them
}

// As sends lines through nc as the user and returns the replies.
func (s SystemUser) As(t *testing.T, socket string, lines ...string) (replies []Reply) {
	t.Helper()
	groups := []string{"--clear-groups"}
	if s.Groups != "" {
		groups = []string{"--groups", s.Groups}
	}
	args := append([]string{"--reuid", fmt.Sprint(s.UID), "--regid", fmt.Sprint(s.GID)}, groups...)
	cmd := local.AsRoot(t.Context(), "setpriv", append(args, "nc", "-N", "-U", socket)...)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("nc as %+v: %v (this test needs root, or sudo without a password)", s, err)
	}
	for line := range strings.Lines(string(out)) {
		var r Reply
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		replies = append(replies, r)
	}
	return replies
}
