package timezones

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLoad: a zone is the program's own, whatever the host has.
func TestLoad(t *testing.T) {
	t.Setenv("ZONEINFO", t.TempDir())
	l, err := Load("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if got := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC).In(l).Format("15:04 MST"); got != "14:00 CEST" {
		t.Errorf("noon in Berlin is %s", got)
	}
	for _, name := range []string{"Europe/Nowhere", "Europe/", "Local", "../etc/passwd", "europe/berlin"} {
		if l, err := Load(name); err == nil || !strings.Contains(err.Error(), Version) {
			t.Errorf("%q: %v, %v", name, l, err)
		}
	}
	if l, err := Load(""); l != time.UTC || err != nil {
		t.Errorf("no name: %v, %v", l, err)
	}
}

// TestVersion: the version is that of the file. A Go distribution of the same version has the same file.
func TestVersion(t *testing.T) {
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(strings.TrimSpace(string(root)), "lib", "time")
	script, err := os.ReadFile(filepath.Join(from, "update.bash"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(script), "\nDATA="+Version+"\n") {
		t.Logf("this Go distribution has other time zones than %s: run go generate ./internal/timezones", Version)
		return
	}
	of, err := os.ReadFile(filepath.Join(from, "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(of, zipped) {
		t.Errorf("zoneinfo.zip isn't that of %s: run go generate ./internal/timezones", Version)
	}
}
