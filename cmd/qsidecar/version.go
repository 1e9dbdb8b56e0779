package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by release builds: -ldflags "-X main.version=1.2.3".
var version string

type buildVersion struct {
	number   string
	revision string // empty: not known
	modified bool
}

func programVersion() buildVersion {
	v := buildVersion{number: version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		if v.number == "" {
			v.number = "devel"
		}
		return v
	}
	if v.number == "" {
		v.number = info.Main.Version
	}
	if v.number == "" || v.number == "(devel)" {
		v.number = "devel"
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.revision = s.Value
		case "vcs.modified":
			v.modified = s.Value == "true"
		}
	}
	return v
}

func (v buildVersion) short() string { return v.number }

func (v buildVersion) String() string {
	s := "qsidecar " + v.number
	if v.revision != "" {
		s += " (" + v.revision[:min(12, len(v.revision))]
		if v.modified {
			s += ", modified"
		}
		s += ")"
	}
	return s + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  takes(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.out, programVersion())
			return err
		},
	}
}
