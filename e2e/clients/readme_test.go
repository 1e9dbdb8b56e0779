package clients

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
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
	for file, pattern := range map[string]string{"clients/python/pyproject.toml": `(?m)^version = "(.*)"`, "clients/ruby/lib/qsidecar.rb": `VERSION = "(.*)"`, "clients/node/package.json": `"version": "(.*)"`} {
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

// TestPackagesHaveTheLicense checks that the packages that a checkout builds contain the license, as those of a release do.
func TestPackagesHaveTheLicense(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile(kit.Path("LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	_, gems := clientlib.RubyGem(t)
	python := clientlib.PythonEnv(t, clientlib.PythonPackage)
	for name, pattern := range map[string]string{
		"gem":   filepath.Join(filepath.Dir(gems), "gems", "qsidecar-*", "LICENSE"),
		"npm":   filepath.Join(clientlib.NodeHome(t), "node_modules", "qsidecar", "LICENSE"),
		"wheel": filepath.Join(filepath.Dir(filepath.Dir(python)), "lib", "python3*", "site-packages", "qsidecar-*.dist-info", "LICENSE"),
	} {
		found, err := filepath.Glob(pattern)
		if name == "wheel" && len(found) == 0 { // newer versions of setuptools
			found, err = filepath.Glob(filepath.Join(filepath.Dir(pattern), "licenses", "LICENSE"))
		}
		if err != nil || len(found) != 1 {
			t.Errorf("the %s has the licenses %v (%v), want one", name, found, err)
			continue
		}
		if got, err := os.ReadFile(found[0]); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s isn't the license (%v)", found[0], err)
		}
	}
}
