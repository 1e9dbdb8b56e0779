package testrules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestQuickStartLeavesNothingUntracked checks that git ignores the files that the quick start of the README creates in a checkout.
func TestQuickStartLeavesNothingUntracked(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	files := regexp.MustCompile(`<!-- file: (\S+) -->|>(\w\S*\.log)|-m venv (\S+)`).FindAllStringSubmatch(string(page), -1)
	if len(files) < 3 {
		t.Fatalf("the quick start creates %q, want a log, a worker and an environment", files)
	}
	for _, f := range files {
		name := f[1] + f[2] + f[3]
		cmd := exec.CommandContext(t.Context(), "git", "check-ignore", "--quiet", "--no-index", name+"/")
		cmd.Dir = root
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v: add it to .gitignore", name, err)
		}
	}
}
