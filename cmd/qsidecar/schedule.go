package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

func (a *app) scheduleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule COMMAND",
		Short: "Keep schedules, which store jobs at times",
		Long: `Keep schedules in the database, which store jobs at times. Every sidecar of the database
serves them, and each occurrence stores one job over all of them.

` + exitCodes,
		Example: "  qsidecar schedule apply schedules.yaml\n  qsidecar schedule list",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no command `schedule %s`: run `qsidecar schedule --help` to see those that exist", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.scheduleApply(), a.scheduleList(), a.scheduleShow(),
		a.scheduleDo(protocol.DoRun, "Store a job of a schedule now", "The next time stays as it is."),
		a.scheduleDo(protocol.DoPause, "Let a schedule store no jobs", "A declaration of the schedule doesn't end the pause."),
		a.scheduleDo(protocol.DoResume, "Let a paused schedule store jobs again", "Its next time is the first one after now. Times of the pause store no jobs."),
		a.scheduleDo(protocol.DoDelete, "Delete a schedule", "Its jobs stay."))
	return cmd
}

func (a *app) scheduleApply() *cobra.Command {
	var prune, dry bool
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Declare the schedules of a YAML file",
		Long: `Declare the schedules of a YAML file, - for stdin. What is declared already stays as it
is, also its next time and its pause. Each schedule is a transaction of its own.

The file's source names who declares them. A definition with a lower version than the
stored one is ignored, and one with the same version but another content is an error.
--prune deletes the schedules of this source that the file doesn't have, up to the file's
version. --dry-run changes nothing, prints what would change, and exits with 3 if
something would.

` + exitCodes,
		Example: "  qsidecar schedule apply schedules.yaml --prune\n  qsidecar schedule apply schedules.yaml --dry-run",
		Args:    argCount(1, 1, "one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.readScheduleFile(args[0])
			if err != nil {
				return err
			}
			f, err := config.ParseSchedules(args[0], text)
			if err != nil {
				return err
			}
			if prune && f.Source == "" {
				return usagef("--prune deletes the schedules of a source, and %s has no source: add `source: NAME`", args[0])
			}
			return a.oneRequestWithin(cmd, longTimeout, func(ctx context.Context, c *qsidecar.Client) error {
				return a.applySchedules(ctx, c, f, prune, dry)
			})
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "delete the other schedules of the file's source")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "change nothing, and exit with 3 if something would change")
	return a.jsonFlag(cmd)
}

func (a *app) readScheduleFile(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(a.in, config.MaxSchedulesFile+1))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("the file of schedules cannot be read: %w", err)
	}
	return text, nil
}

// applySchedules declares schedules and deletes others of their source. It goes on after an error, and returns the first one.
func (a *app) applySchedules(ctx context.Context, c *qsidecar.Client, f *config.SchedulesFile, prune, dry bool) (first error) {
	changed := false
	fail := func(err error) {
		if first == nil {
			first = err
		} else {
			fmt.Fprintf(a.errOut, "qsidecar: %v\n", err)
		}
	}
	for i := range f.Schedules {
		s := &f.Schedules[i]
		rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpSchedule, Queue: s.Queue, Schedule: s, DryRun: dry})
		if err != nil {
			fail(aboutSchedule(s.Name, err))
			continue
		}
		d := rep.Declared
		if d == nil {
			d = &protocol.Declared{}
		}
		changed = changed || d.Outcome == "created" || d.Outcome == "updated"
		if err := a.printDeclared(s.Name, d.Outcome, d.Differences); err != nil {
			return err
		}
	}
	if prune && first == nil {
		pruned, err := a.pruneSchedules(ctx, c, f, dry)
		if changed = changed || pruned; err != nil {
			fail(err)
		}
	}
	if first == nil && dry && changed {
		return &codeError{code: exitChanged}
	}
	return first
}

// aboutSchedule adds the schedule's name to an error that lacks it.
func aboutSchedule(name string, err error) error {
	if strings.Contains(err.Error(), "schedule "+name+" ") {
		return err
	}
	return fmt.Errorf("schedule %s: %w", name, err)
}

func (a *app) pruneSchedules(ctx context.Context, c *qsidecar.Client, f *config.SchedulesFile, dry bool) (changed bool, _ error) {
	all, err := allSchedules(ctx, c, "")
	if err != nil {
		return false, err
	}
	for i := range all {
		s := &all[i]
		if s.Source != f.Source || s.Version > f.Version || slices.ContainsFunc(f.Schedules, func(k protocol.Schedule) bool { return k.Name == s.Name }) {
			continue
		}
		if !dry {
			if _, err := c.Call(ctx, &protocol.Request{Op: protocol.OpChangeSchedule, Queue: s.Queue, Do: protocol.DoDelete,
				Schedule: &protocol.Schedule{Name: s.Name, Source: f.Source, Version: f.Version}}); err != nil {
				return changed, aboutSchedule(s.Name, err)
			}
		}
		changed = true
		if err := a.printDeclared(s.Name, "deleted", nil); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// declaredLine is a line of `schedule apply --json`.
type declaredLine struct {
	Schedule    string           `json:"schedule"`
	Outcome     string           `json:"outcome"`
	Differences []differenceLine `json:"differences,omitempty"`
}

type differenceLine struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// printDeclared prints what became of a schedule, and the difference.
func (a *app) printDeclared(name, outcome string, differences []protocol.Difference) error {
	if a.json {
		line := declaredLine{Schedule: name, Outcome: outcome}
		for _, d := range differences {
			line.Differences = append(line.Differences, differenceLine(d))
		}
		e := json.NewEncoder(a.out)
		e.SetEscapeHTML(false)
		return e.Encode(line)
	}
	if err := a.printf("%s %s", outcome, name); err != nil {
		return err
	}
	for _, d := range differences {
		if err := a.printf("  %s: %s -> %s", d.Field, shownValue(d.From), shownValue(d.To)); err != nil {
			return err
		}
	}
	return nil
}

func shownValue(v string) string {
	if v == "" {
		return "(none)"
	}
	return fmt.Sprintf("%q", v)
}

func (a *app) scheduleList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list [QUEUE]",
		Short:   "List the schedules of a queue, or of all queues",
		Long:    "List the schedules of a queue, or of all queues.\n\n" + exitCodes,
		Example: "  qsidecar schedule list",
		Args:    argCount(0, 1, "at most one queue"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				all, err := allSchedules(ctx, c, strings.Join(args, ""))
				if err != nil {
					return err
				}
				if a.json {
					return a.printEach(&protocol.Reply{Schedules: all}, "schedules")
				}
				if len(all) == 0 {
					return a.printf("there is no schedule")
				}
				var rows [][]string
				for i := range all {
					s := &all[i]
					next := timeText(s.NextAt)
					if s.Paused {
						next = "paused"
					}
					rows = append(rows, []string{s.Name, s.Queue, s.String(), next, timeText(s.LastAt)})
				}
				return a.table("NAME QUEUE WHEN NEXT LAST", rows)
			})
		},
	}
	return a.jsonFlag(cmd)
}

// allSchedules returns the schedules of a queue, or of all queues if the name is empty, page by page.
func allSchedules(ctx context.Context, c *qsidecar.Client, queue string) ([]protocol.Schedule, error) {
	all := []protocol.Schedule{}
	for after := ""; ; {
		rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpSchedules, Queue: queue, After: after, Max: protocol.Some[int64](protocol.MaxList)})
		if err != nil {
			return nil, err
		}
		all = append(all, rep.Schedules...)
		if after = rep.After; after == "" {
			return all, nil
		}
	}
}

func timeText(ms protocol.Opt[int64]) string {
	if at, ok := ms.Get(); ok {
		return instantText(at)
	}
	return "-"
}

func instantText(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

func (a *app) scheduleShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show NAME",
		Short:   "Show a schedule, and when it runs next",
		Long:    "Show a schedule, its next five times in UTC, and the next change of the clock that moves one.\n\n" + exitCodes,
		Example: "  qsidecar schedule show daily-report",
		Args:    argCount(1, 1, "one schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				rep, err := findSchedule(ctx, c, args[0])
				if err != nil {
					return err
				}
				if a.json {
					return a.printEach(rep, "schedules")
				}
				return a.printSchedule(&rep.Schedules[0])
			})
		},
	}
	return a.jsonFlag(cmd)
}

// findSchedule returns a reply with the schedule alone.
func findSchedule(ctx context.Context, c *qsidecar.Client, name string) (*protocol.Reply, error) {
	rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpSchedules, Schedule: &protocol.Schedule{Name: name}})
	switch {
	case err != nil:
		return nil, err
	case len(rep.Schedules) == 0:
		return nil, fmt.Errorf("there is no schedule %s: `qsidecar schedule list` shows those that exist", name)
	case len(rep.Schedules) > 1:
		return nil, fmt.Errorf("two databases have a schedule %s: delete one of them on a sidecar that has no more than one of the databases", name)
	}
	return rep, nil
}

func (a *app) printSchedule(s *protocol.Schedule) error {
	rows := [][]string{{"name", s.Name}, {"queue", s.Queue}, {"when", s.String()}}
	add := func(name, value string) {
		if value != "" && value != "-" {
			rows = append(rows, []string{name, value})
		}
	}
	if s.SplayMS > 0 {
		add("splay", (time.Duration(s.SplayMS) * time.Millisecond).String())
	}
	add("missed", s.Missed)
	add("overlap", s.Overlap)
	add("source", s.Source)
	if s.Version > 0 {
		add("version", fmt.Sprint(s.Version))
	}
	if s.Priority != 0 {
		add("priority", fmt.Sprint(s.Priority))
	}
	add("payload", textfmt.OneLine(string(s.Payload), 1000))
	if s.Paused {
		add("paused", "yes")
	}
	for i, at := range s.Upcoming {
		name := "next"
		if i > 0 {
			name = ""
		}
		rows = append(rows, []string{name, instantText(at)})
	}
	add("last", timeText(s.LastAt))
	add("last job", s.LastJob)
	if c := s.ClockChange; c != nil {
		what := "the clock repeats an hour: fixed times run once, intervals each time"
		if c.Skipped {
			what = "the clock passes over a time, which runs right after that"
		}
		add("clock change", instantText(c.At)+" "+what)
	}
	for _, r := range rows {
		if err := a.printf("%-13s %s", r[0], r[1]); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) scheduleDo(do, short, more string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     do + " NAME",
		Short:   short,
		Long:    short + ". " + more + "\n\n" + exitCodes,
		Example: "  qsidecar schedule " + do + " daily-report",
		Args:    argCount(1, 1, "one schedule"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.oneRequest(cmd, func(ctx context.Context, c *qsidecar.Client) error {
				found, err := findSchedule(ctx, c, args[0])
				if err != nil {
					return err
				}
				rep, err := c.Call(ctx, &protocol.Request{Op: protocol.OpChangeSchedule, Queue: found.Schedules[0].Queue, Do: do,
					Schedule: &protocol.Schedule{Name: args[0]}})
				switch {
				case err != nil:
					return err
				case a.json:
					return a.printReply(rep)
				case rep.Enqueued != nil:
					return a.printf("%s", rep.Enqueued.ID)
				}
				return a.printf("%sed %s", strings.TrimSuffix(do, "e"), args[0])
			})
		},
	}
	return a.jsonFlag(cmd)
}
