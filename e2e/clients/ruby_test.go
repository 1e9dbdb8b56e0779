package clients

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestRubyKit checks that the Ruby client has every reaction of clients/README.md.
func TestRubyKit(t *testing.T) {
	t.Parallel()
	for _, codec := range []string{"json", "msgpack"} {
		t.Run(codec, func(t *testing.T) {
			t.Parallel()
			if report, ok := runKit(t, codec, testwait.Limit, "ruby", "-w", filepath.Join(clientlib.RubyPackage, "kit_adapter.rb")); !ok {
				t.Errorf("the kit on the Ruby client:\n%s", report)
			}
		})
	}
}

// TestRubyReadme checks the syntax of the README's Ruby blocks.
func TestRubyReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(clientlib.RubyPackage, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```ruby\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) < 4 {
		t.Fatalf("the README shows %d blocks of Ruby, want four at least", len(blocks))
	}
	for _, b := range blocks {
		cmd := exec.CommandContext(t.Context(), "ruby", "-wc")
		cmd.Stdin = bytes.NewReader(b[1])
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "Syntax OK\n" {
			t.Errorf("%v: %s\n%s", err, out, b[1])
		}
	}
}
