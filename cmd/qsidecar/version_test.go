package main

import (
	"encoding/json"
	"runtime/debug"
	"slices"
	"testing"
)

// TestVersions checks the version for each way to build the program.
func TestVersions(t *testing.T) {
	git := []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
		{Key: "vcs.time", Value: "2026-11-22T05:45:54Z"},
		{Key: "vcs.modified", Value: "false"},
	}
	changed := slices.Concat(git[:2], []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}})
	for _, tt := range []struct {
		name, main, ldflag string
		settings           []debug.BuildSetting
		want               string // without the version of Go and the system
	}{
		{"a tag", "v1.2.3", "", git, "qsidecar 1.2.3 (0123456789ab of 2026-11-22T05:45:54Z)"},
		{"a changed tag", "v1.2.3+dirty", "", changed, "qsidecar 1.2.3+dirty (0123456789ab of 2026-11-22T05:45:54Z, modified)"},
		{"a commit", "v1.2.4-0.20261122054554-0123456789ab", "", git, "qsidecar 1.2.4-0.20261122054554-0123456789ab (0123456789ab of 2026-11-22T05:45:54Z)"},
		{"go install of a tag", "v1.2.3", "", nil, "qsidecar 1.2.3"},
		{"go install of a commit", "v0.0.0-20261122054554-0123456789ab", "", nil, "qsidecar 0.0.0-20261122054554-0123456789ab (0123456789ab of 2026-11-22T05:45:54Z)"},
		{"no repository", "(devel)", "", nil, "qsidecar devel"},
		{"no repository, a version given", "(devel)", "1.2.3-1", nil, "qsidecar 1.2.3-1"},
		{"nothing known", "", "", nil, "qsidecar devel"},
	} {
		info := &debug.BuildInfo{Settings: tt.settings}
		info.Main.Version = tt.main
		v := versionOf(info, tt.ldflag)
		if got, want := v.String(), tt.want+" "+v.Go+" "+v.OS+"/"+v.Arch+", time zones "+v.Zones; got != want {
			t.Errorf("%s: %q, want %q", tt.name, got, want)
		}
	}
}

// TestVersionCommand checks that all three ways to ask return the same version.
func TestVersionCommand(t *testing.T) {
	h := newHost(t)
	var printed buildVersion
	if err := json.Unmarshal([]byte(h.must(0, "version", "--json")), &printed); err != nil || printed != programVersion() {
		t.Errorf("version --json prints %+v (%v), want %+v", printed, err, programVersion())
	}
	for _, how := range []string{"version", "--version"} {
		if got, want := h.must(0, how), printed.String()+"\n"; got != want {
			t.Errorf("%s prints %q, want %q", how, got, want)
		}
	}
}
