package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/check"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// printResults prints the results of check. Errors of the config are part of the JSON output
// only, because report prints them to stderr.
func (a *app) printResults(file string, c config.Config, all []check.Result, host check.Result, usage error) error {
	if a.json {
		return a.printJSONLines(append([]check.Result{host}, all...), usage)
	}
	if file != "" && usage == nil {
		if err := a.printf("config %s: ok", file); err != nil {
			return err
		}
	}
	for _, d := range all {
		if err := a.printDatabase(d); err != nil {
			return err
		}
	}
	if usage != nil {
		return nil
	}
	for _, l := range c.Listen {
		if err := a.printf("socket: %s", l.Socket); err != nil {
			return err
		}
	}
	if c.Admin.Listen != "" {
		if err := a.printf("admin: %s", c.Admin.Listen); err != nil {
			return err
		}
	}
	if len(host.Findings) > 0 {
		if err := a.printf("%s", strings.TrimPrefix(findingLines(host.Findings), "\n")); err != nil {
			return err
		}
	}
	names := slices.Sorted(maps.Keys(c.Queues))
	if i := slices.Index(names, "*"); i >= 0 {
		names[i] = "* (any other name)"
	}
	return a.printf("queues: %s", strings.Join(names, ", "))
}

// printDatabase prints the result for one database.
func (a *app) printDatabase(d check.Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "database %s", d.Name)
	if d.Info.Engine != "" {
		fmt.Fprintf(&b, ": %s", databases.Describe(d.Info))
	}
	switch errs, warnings := d.Count(backends.SeverityError), d.Count(backends.SeverityWarning); {
	case d.ConfigErr != nil:
		b.WriteString(": not checked")
	case errs > 0:
		fmt.Fprintf(&b, ": %s", textfmt.Plural(int64(errs), "error"))
	case warnings > 0:
		fmt.Fprintf(&b, ": ok, with %s", textfmt.Plural(int64(warnings), "warning"))
	default:
		b.WriteString(": ok")
	}
	return a.printf("%s", b.String()+findingLines(d.Findings))
}

// findingLines returns the findings as text, the most severe first, each after a newline.
func findingLines(all []backends.Finding) string {
	var b strings.Builder
	for _, severity := range []backends.Severity{backends.SeverityError, backends.SeverityWarning, backends.SeverityInfo} {
		for _, f := range all {
			if f.Severity != severity {
				continue
			}
			fmt.Fprintf(&b, "\n  %-7s %s: %s", severity, f.Topic, strings.ReplaceAll(f.Text, "\n", "\n          "))
			if f.Fix != "" {
				fmt.Fprintf(&b, "\n          → %s", f.Fix)
			}
		}
	}
	return b.String()
}

// findingLine is a finding in the output of --json. Without a database it concerns the
// config or this host.
type findingLine struct {
	Database string `json:"database,omitempty"`
	Severity string `json:"severity"`
	Topic    string `json:"topic"`
	Text     string `json:"text"`
	Fix      string `json:"fix,omitempty"`
}

func (a *app) printJSONLines(all []check.Result, usage error) error {
	var lines []findingLine
	for _, text := range config.Problems(usage) {
		lines = append(lines, findingLine{Severity: backends.SeverityError.String(), Topic: "config", Text: text, Fix: "correct the config"})
	}
	for _, d := range all {
		for _, f := range d.Findings {
			lines = append(lines, findingLine{d.Name, f.Severity.String(), f.Topic, f.Text, f.Fix})
		}
	}
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	for _, l := range lines {
		if err := e.Encode(l); err != nil {
			return err
		}
	}
	return nil
}
