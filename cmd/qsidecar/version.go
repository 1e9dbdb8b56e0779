package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/internal/timezones"
)

// version is set for a source without its repository: -ldflags "-X main.version=1.2.3"
// (scripts/build.sh). Otherwise Go reads the version from git.
var version string

// buildVersion is the output of `qsidecar version --json`.
type buildVersion struct {
	// Number is a tag without its v, such as 1.2.3. Between two tags it is Go's
	// pseudo-version, which contains the time and the commit. It is "devel" if the version
	// is unknown.
	Number   string `json:"version"`
	Commit   string `json:"commit,omitempty"`      // 40 digits; 12 if the source is from Go's module proxy
	Time     string `json:"commit_time,omitempty"` // of the commit: RFC 3339, UTC
	Modified bool   `json:"modified"`              // the source differs from the commit
	Go       string `json:"go"`
	Zones    string `json:"time_zones"` // the release of the IANA database that schedules use
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// programVersion returns the version of this program.
func programVersion() buildVersion {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(info, version)
}

// pseudo matches the end of a pseudo-version.
var pseudo = regexp.MustCompile(`[-.](\d{14})-([0-9a-f]{12})(?:\+dirty)?$`)

// versionOf returns the version in info. number takes precedence, if it is set.
func versionOf(info *debug.BuildInfo, number string) buildVersion {
	if number == "" && info.Main.Version != "(devel)" {
		number = info.Main.Version
	}
	if number == "" {
		number = "devel"
	}
	v := buildVersion{Number: strings.TrimPrefix(number, "v"), Go: runtime.Version(), Zones: timezones.Version, OS: runtime.GOOS, Arch: runtime.GOARCH}
	if m := pseudo.FindStringSubmatch(info.Main.Version); m != nil {
		// `go install …@latest` of an untagged source has no data from git.
		if at, err := time.Parse("20060102150405", m[1]); err == nil {
			v.Commit, v.Time = m[2], at.Format(time.RFC3339)
		}
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// String returns the version on one line.
func (b buildVersion) String() string {
	s := "qsidecar " + b.Number
	if b.Commit != "" {
		s += " (" + b.Commit[:min(12, len(b.Commit))]
		if b.Time != "" {
			s += " of " + b.Time
		}
		if b.Modified {
			s += ", modified"
		}
		s += ")"
	}
	return s + " " + b.Go + " " + b.OS + "/" + b.Arch + ", time zones " + b.Zones
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Long: `Print the version of this program, the commit that it was built from and its time, the
version of Go, the system it is for, and the release of its time zones. A version with
"+dirty" in it was built from a source that had been changed after that commit.

Exit codes: 0 printed, 2 wrong arguments.`,
		Example: `  qsidecar version
  qsidecar version --json`,
		Args: argCount(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			v := programVersion()
			if !a.json {
				return a.printf("%v", v)
			}
			line, err := json.Marshal(v)
			if err != nil {
				return fmt.Errorf("writing the version as JSON: %w", err)
			}
			return a.printf("%s", line)
		},
	}
	return a.jsonFlag(cmd)
}
