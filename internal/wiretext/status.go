package wiretext

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// DatabaseState returns whether a database is available, in a few words.
func DatabaseState(d *protocol.DatabaseStatus) string {
	switch {
	case d.Error != "":
		return "ERROR"
	case d.HeartbeatAgeMS < 0:
		return "not reached yet"
	case d.Draining:
		return "draining: not in the config any more"
	case d.ObstacleCount > 0:
		return "ok, but " + textfmt.Plural(d.ObstacleCount, "obstacle")
	}
	return "ok"
}

// Obstacle returns what a database refuses: the work, the job, the error, and the next try.
func Obstacle(o *protocol.Obstacle) string {
	what := "jobs"
	if o.Job != "" {
		what = "job " + o.Job
	}
	text := fmt.Sprintf("%s %s of the queue %s", o.Doing, what, o.Queue)
	if o.Queue == "" {
		text = o.Doing + " table " + o.Table
	} else if o.Table != "" {
		text += fmt.Sprintf(" (table %s)", o.Table)
	}
	return textfmt.OneLine(fmt.Sprintf("%s: %s (for %s; next try in %s)", text, o.Error, Age(o.AgeMS), Age(o.NextTryMS)), 2000)
}

// Pool returns how many connections of a database's pool are in use, and the limit.
func Pool(d *protocol.DatabaseStatus) string {
	if d.PoolMax == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", d.PoolInUse, d.PoolMax)
}

// shownQueues is how many queues of a connection fit on a line.
const shownQueues = 3

// Queues lists the queues of a connection's leases, with their numbers.
func Queues(s *protocol.SessionStatus) string {
	var queues []string
	remaining := s.Leases
	for i, l := range s.Queues {
		if i == shownQueues {
			break
		}
		queues = append(queues, fmt.Sprintf("%s:%d", textfmt.OneLine(cmp.Or(l.Queue, "?"), 32), l.Leases))
		remaining -= l.Leases
	}
	if remaining > 0 {
		queues = append(queues, fmt.Sprintf("others:%d", remaining))
	}
	return cmp.Or(strings.Join(queues, ","), "-")
}

// Optional returns a number, or "-".
func Optional(n protocol.Opt[int64]) string {
	if !n.Set {
		return "-"
	}
	return strconv.FormatInt(n.Value, 10)
}

// Age formats a duration with two units at most.
func Age(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms <= 0:
		return "-"
	case d < time.Second:
		return fmt.Sprintf("%dms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}
