package wiretext

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// LastFailure returns the last failed attempt of a job, or an empty one.
func LastFailure(v protocol.JobView) (last protocol.Failure) {
	if n := len(v.Errors); n > 0 {
		last = v.Errors[n-1]
	}
	return last
}

// carets is the line below the source in an uncaught error of Node.js.
var carets = regexp.MustCompile(`^\s*\^+$`)

// Summary returns an error without what comes before it in a trace of Python or Node.js, which begins with places in the code.
// `qsidecar work` has written the exit status before the trace.
func Summary(message string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(message), "\n")
	status, _, ok := strings.Cut(first, ": ")
	if !ok || !strings.HasPrefix(status, "exit status ") {
		status = ""
	} else {
		status += ": "
	}
	lines := strings.Split(rest, "\n")
	found := -1
	if strings.HasSuffix(first, "Traceback (most recent call last):") { // the frames are indented
		for i, line := range lines[:len(lines)-1] {
			if strings.HasPrefix(line, "  ") && !strings.HasPrefix(lines[i+1], " ") {
				found = i + 1
			}
		}
	} else if i := slices.IndexFunc(lines, carets.MatchString); i >= 0 && i+1 < len(lines) {
		found = i + 1
		for found+1 < len(lines) && strings.TrimSpace(lines[found]) == "" {
			found++
		}
	}
	if found < 0 || strings.TrimSpace(lines[found]) == "" {
		return message
	}
	return status + strings.TrimSpace(lines[found])
}

// Attempt returns how many attempts were counted, and their limit if there is one.
func Attempt(v protocol.JobView) string {
	if v.MaxAttempts > 0 {
		return fmt.Sprintf("%d/%d", v.Attempt, v.MaxAttempts)
	}
	return strconv.FormatInt(v.Attempt, 10)
}

// Time formats an instant in UTC, in the form of most logs.
func Time(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z")
}

// Waits returns what keeps a job from workers; empty: nothing that is known.
func Waits(v protocol.JobView) string {
	switch v.WaitsFor {
	case protocol.WaitsForTime:
		return "for its time, " + Time(v.RunAt.Or(0))
	case protocol.WaitsForPause:
		return "the queue is paused: run `qsidecar resume " + v.Queue + "`"
	case protocol.WaitsForMaxClaimed, protocol.WaitsForRate:
		return fmt.Sprintf("the queue has reached its limit %s: see `qsidecar limit %s`", v.WaitsFor, v.Queue)
	case protocol.WaitsForWorker:
		return "for a worker: on this host none asks for jobs of " + v.Queue + " now, or has one"
	case protocol.WaitsForGroup:
		if len(v.Behind) == 0 {
			return "for a slot of its group, which a job gets within a second"
		}
		var names []string
		for _, j := range v.Behind {
			names = append(names, fmt.Sprintf("%s (%s)", textfmt.OneLine(j.ID, protocol.MaxJobID), j.State))
		}
		return "behind jobs of its group: " + strings.Join(names, ", ")
	}
	return string(v.WaitsFor)
}

// Progress returns how far a job is, without its data; empty: nothing is known.
func Progress(p *protocol.Progress) string {
	if p == nil {
		return ""
	}
	done, hasDone := p.Done.Get()
	total, hasTotal := p.Total.Get()
	switch {
	case hasDone && total > 0:
		return fmt.Sprintf("%d/%d (%d %%)", done, total, int(100*float64(done)/float64(total)))
	case hasDone && hasTotal:
		return fmt.Sprintf("%d/%d", done, total)
	case hasDone:
		return strconv.FormatInt(done, 10)
	case hasTotal:
		return fmt.Sprintf("?/%d", total)
	}
	return ""
}

// Job returns all of a job as lines of names and values.
func Job(v protocol.JobView) string {
	var b strings.Builder
	line := func(name, text string) {
		if text != "" && text != "-" {
			fmt.Fprintf(&b, "%-12s %s\n", name, text)
		}
	}
	line("job", textfmt.OneLine(v.ID, protocol.MaxJobID))
	line("queue", v.Queue)
	line("state", string(v.State))
	line("attempt", Attempt(v))
	line("priority", strconv.FormatInt(v.Priority, 10))
	line("key", textfmt.OneLine(v.Key, protocol.MaxKey))
	line("group", textfmt.OneLine(v.Group, protocol.MaxGroup))
	line("worker", textfmt.OneLine(v.Worker, protocol.MaxWorkerName))
	line("enqueued", Time(v.EnqueuedAt))
	line("due", Time(v.RunAt.Or(0)))
	line("start before", Time(v.StartBefore.Or(0)))
	line("claimed", Time(v.ClaimedAt.Or(0)))
	line("finished", Time(v.FinishedAt.Or(0)))
	line("waits", Waits(v))
	if p := v.Progress; p != nil {
		line("progress", strings.TrimSpace(Progress(p)+" at "+Time(p.At)))
		line("", block(string(p.Data)))
	}
	for _, name := range slices.Sorted(maps.Keys(v.Headers)) {
		line("header", textfmt.OneLine(name, len(name)+2)+": "+block(v.Headers[name]))
	}
	if n, ok := v.LeftOut.Get(); ok {
		line("payload", fmt.Sprintf("(%d bytes with the result, left out of the reply)", n))
	} else {
		line("payload", block(string(v.Payload)))
	}
	if v.Result != nil {
		line("result", cmp.Or(block(string(v.Result)), "(empty)"))
	}
	for _, f := range v.Errors {
		line("failed", fmt.Sprintf("attempt %d at %s, %s", f.Attempt, Time(f.At), f.Cause))
		line("", block(f.Message))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// block indents the lines of a text and replaces control characters. It returns other bytes
// in hex.
func block(text string) string {
	if !utf8.ValidString(text) {
		return fmt.Sprintf("(%d bytes, in hex) %s", len(text), hex.EncodeToString([]byte(text)))
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.Map(func(r rune) rune {
			if r == '\t' || strconv.IsPrint(r) {
				return r
			}
			return utf8.RuneError
		}, line)
	}
	return strings.Join(lines, "\n"+strings.Repeat(" ", 13))
}
