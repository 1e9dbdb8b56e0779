package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestRubyKit: the Ruby client has every reaction that clients/README.md lists, over
// both codecs.
func TestRubyKit(t *testing.T) {
	t.Parallel()
	kit := filepath.Join(t.TempDir(), "kit")
	if out, err := exec.Command("go", "build", "-o", kit, "../clients/kit").CombinedOutput(); err != nil {
		t.Fatalf("building the kit: %v\n%s", err, out)
	}
	for _, codec := range []string{"json", "msgpack"} {
		t.Run(codec, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, kit, "-codec", codec, "-patience", "20s", "-j", "4",
				"--", "ruby", "-w", "clients/ruby/kit_adapter.rb")
			cmd.Dir = ".."
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}
