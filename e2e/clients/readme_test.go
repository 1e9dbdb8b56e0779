package clients

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// shellBlocks returns the shell blocks of a page in order.
func shellBlocks(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, b := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(b[1]))
	}
	return blocks
}

// readmeCommands are the blocks of the README that need the program, each found by a text in it,
// with its expected output. A test replaces what it can't use: the work service and a system's
// config. The blocks that build the program are in e2e/journeys.
var readmeCommands = []struct {
	word, prints string
	replace      []string
}{
	{word: "git clone"}, // see TestPastedLines of e2e/journeys
	{word: "./bin/qsidecar claim mail", prints: "working on: hello, world"},
	{word: "./bin/qsidecar work mail", prints: "to: ada", replace: []string{"-j 4", "-j 4 --drain"}},
	{word: "nc -N -U"}, // see TestReadmeShell
	{word: "qsidecar check", prints: "sqlite", replace: []string{"/etc/qsidecar/config.yaml", "a.yaml"}},
}

// TestReadmeCommands runs the commands of the README unchanged.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	blocks := shellBlocks(t, kit.Path("README.md"))
	if len(blocks) != len(readmeCommands) {
		t.Fatalf("the README has %d blocks of commands, want %d", len(blocks), len(readmeCommands))
	}
	s := kit.NewSite(t)
	a := s.Start("a")
	s.Script("send.sh", "cat")
	if err := os.MkdirAll(filepath.Join(s.Dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(kit.Binary, filepath.Join(s.Dir, "bin", "qsidecar")); err != nil {
		t.Fatal(err)
	}
	for i, want := range readmeCommands {
		if !strings.Contains(blocks[i], want.word) {
			t.Errorf("block %d of the README lacks %q:\n%s", i, want.word, blocks[i])
		}
		if want.prints == "" {
			continue
		}
		a.Dial().Put("other", "x")
		if strings.Contains(want.word, "work") {
			a.Dial().Put("mail", "to: ada")
		}
		script := strings.NewReplacer(want.replace...).Replace(blocks[i])
		if out := runShell(a, t, "bash", "set -eu\ncd '"+s.Dir+"'\n"+script); !strings.Contains(strings.ToLower(out), want.prints) {
			t.Errorf("it printed\n%s\nwant %q in it, by\n%s", out, want.prints, script)
		}
	}
	if n := a.Dial().Stats("mail").Total(); n != 0 {
		t.Errorf("%d jobs are left in mail", n)
	}
}

// TestShellOneJob checks that the page's script for one job at a time acks a job that was sent, and
// returns one that was not.
func TestShellOneJob(t *testing.T) {
	t.Parallel()
	var script string
	for _, b := range shellBlocks(t, shellPage) {
		if strings.Contains(b, "send-letter") {
			script = b
		}
	}
	for _, shell := range shells {
		a := kit.NewSite(t).Start("a")
		for status, want := range map[string]kit.QueueStats{"0": {}, "9": {Scheduled: 1}} {
			a.Dial().Put("mail", "to: ada")
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "send-letter"), []byte("#!/bin/sh\nset -e\n[ \"$(cat \"$1\")\" = 'to: ada' ]\nexit "+status+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			library := strings.Replace(script, "clients/shell/qsidecar.sh", kit.Path("clients/shell/qsidecar.sh"), 1)
			runShell(a, t, shell, "set -eu\nPATH=\"$PATH:"+dir+"\"\ncd '"+dir+"'\n"+library)
			if got := a.Dial().Stats("mail"); got.Total() != want.Total() || got.Scheduled != want.Scheduled {
				t.Errorf("%s: after the status %s mail has %+v", shell, status, got)
			}
			a.Dial().Must(kit.Msg{"op": "purge", "queue": "mail", "state": "scheduled"})
		}
	}
}

// TestOneVersion checks that all packaged clients have the same version.
func TestOneVersion(t *testing.T) {
	t.Parallel()
	versions := map[string]string{}
	for file, pattern := range map[string]string{"clients/python/pyproject.toml": `(?m)^version = "(.*)"`, "clients/ruby/lib/qsidecar.rb": `VERSION = "(.*)"`} {
		text, err := os.ReadFile(kit.Path(file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s has no version", file)
		}
		versions[string(found[1])] = file
	}
	if len(versions) != 1 {
		t.Errorf("the clients have the versions %v, want one", versions)
	}
}
