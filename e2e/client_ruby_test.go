package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
)

// rubyPackage is the client under test.
const rubyPackage = "../clients/ruby"

// TestRubyKit: the Ruby client has every reaction of clients/README.md.
func TestRubyKit(t *testing.T) {
	t.Parallel()
	for _, codec := range []string{"json", "msgpack"} {
		t.Run(codec, func(t *testing.T) {
			t.Parallel()
			if report, ok := runKit(t, codec, "20s", "ruby", "-w", filepath.Join(rubyPackage, "kit_adapter.rb")); !ok {
				t.Errorf("the kit on the Ruby client:\n%s", report)
			}
		})
	}
}

// rubyGems is a folder where the package is installed, built as a gem, and nothing else.
var rubyGems = sync.OnceValues(func() (home string, err error) {
	home = filepath.Join(filepath.Dir(binary), "gems")
	file := filepath.Join(filepath.Dir(binary), "qsidecar.gem")
	for _, args := range [][]string{
		{"build", "--silent", "qsidecar.gemspec", "-o", file},
		{"install", "--local", "--no-document", "--silent", file},
	} {
		cmd := exec.Command("gem", args...)
		cmd.Dir, cmd.Env = rubyPackage, append(os.Environ(), gemEnv(home)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("gem %v: %w\n%s", args, err, out)
		}
	}
	return home, nil
})

// gemEnv has gems found in home and nowhere else: without msgpack.
func gemEnv(home string) []string { return []string{"GEM_HOME=" + home, "GEM_PATH=" + home} }

// rubyGem is the environment to find the installed package with, and the folder of
// its programs.
func rubyGem(t *testing.T) (env []string, bin string) {
	t.Helper()
	home, err := rubyGems()
	if err != nil {
		t.Fatal(err)
	}
	return gemEnv(home), filepath.Join(home, "bin")
}

// TestRubyReadme: what the package's README shows is Ruby.
func TestRubyReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(rubyPackage, "README.md"))
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
