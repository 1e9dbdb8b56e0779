package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

// queueColumns are the columns of queuesScreen. In 80 characters the names have 17.
var queueColumns = []column{
	{title: "QUEUE"}, {"READY", 8, true}, {"SCHEDULED", 10, true}, {"CLAIMED", 8, true}, {"DEAD", 8, true},
	{"OLDEST", 7, true}, {"CHANGE/S", 9, true}, {"STATE", 6, false},
}

// queueOrder compares queues by a column: names ascending, and numbers descending.
func (m *model) queueOrder(a, b protocol.QueueStat) int {
	byNumber := func(f func(protocol.QueueStat) int64) int { return cmp.Compare(f(b), f(a)) }
	switch queueColumns[m.sortBy].title {
	case "READY":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Ready })
	case "SCHEDULED":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Scheduled })
	case "CLAIMED":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Claimed })
	case "DEAD":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Dead })
	case "OLDEST":
		return byNumber(func(q protocol.QueueStat) int64 { return q.OldestReadyMS })
	case "CHANGE/S":
		return cmp.Compare(m.rates.of(b), m.rates.of(a))
	case "STATE":
		return strings.Compare(openOrPaused(b), openOrPaused(a))
	}
	return strings.Compare(a.Queue, b.Queue)
}

func (m *model) queueRows() []row {
	filter := strings.ToLower(m.filter.Value())
	shown := make([]protocol.QueueStat, 0, len(m.queues))
	for _, q := range m.queues {
		if strings.Contains(strings.ToLower(q.Queue), filter) {
			shown = append(shown, q)
		}
	}
	slices.SortFunc(shown, func(a, b protocol.QueueStat) int {
		order := m.queueOrder(a, b)
		if m.reverse {
			order = -order
		}
		return cmp.Or(order, strings.Compare(a.Queue, b.Queue))
	})
	rows := make([]row, len(shown))
	for i, q := range shown {
		dead, state := plain(count(q.Dead, q.Approx)), plain(openOrPaused(q))
		if q.Dead > 0 {
			dead.style = badStyle
		}
		if q.Paused {
			state.style = warnStyle
		}
		rows[i] = row{q.Queue, []cell{
			plain(textfmt.OneLine(q.Queue, 255)), plain(count(q.Ready, q.Approx)), plain(count(q.Scheduled, q.Approx)), plain(count(q.Claimed, q.Approx)),
			dead, plain(wiretext.Age(q.OldestReadyMS)), plain(changeText(m.rates.of(q))), state,
		}}
	}
	return rows
}

func openOrPaused(q protocol.QueueStat) string {
	if q.Paused {
		return "paused"
	}
	return "open"
}

// count formats a number of jobs. ~ marks an estimate.
func count(n int64, approx bool) string {
	if approx && n > 10_000 {
		return "~" + strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10)
}

// ratesWindow is the time over which the change of a queue is averaged. An estimate of a large queue
// can be that old.
const ratesWindow = 10 * time.Second

// rates computes how fast the number of unfinished jobs of each queue changes.
type rates struct {
	samples []sample // the oldest first
}

// sample has the jobs of each queue that are ready, scheduled or claimed at an instant.
type sample struct {
	at   time.Time
	jobs map[string]int64
}

func unfinished(q protocol.QueueStat) int64 { return q.Ready + q.Scheduled + q.Claimed }

// add stores a sample, about one a second, and removes those that are older than the window.
func (r *rates) add(at time.Time, stats []protocol.QueueStat) {
	if n := len(r.samples); n > 1 && r.samples[n-1].at.Sub(r.samples[n-2].at) < time.Second {
		r.samples = r.samples[:n-1] // it is too close to the one before
	}
	s := sample{at, make(map[string]int64, len(stats))}
	for _, q := range stats {
		s.jobs[q.Queue] = unfinished(q)
	}
	r.samples = append(r.samples, s)
	for len(r.samples) > 2 && at.Sub(r.samples[1].at) >= ratesWindow {
		r.samples = r.samples[1:]
	}
}

// of returns the jobs per second by which a queue grows, or NaN if that is unknown. A queue that an
// older sample lacks had no jobs.
func (r *rates) of(q protocol.QueueStat) float64 {
	n := len(r.samples)
	if n < 2 {
		return math.NaN()
	}
	first, last := r.samples[0], r.samples[n-1]
	return float64(last.jobs[q.Queue]-first.jobs[q.Queue]) / last.at.Sub(first.at).Seconds()
}

func changeText(perSecond float64) string {
	switch size := math.Abs(perSecond); {
	case math.IsNaN(perSecond):
		return "-"
	case size < 0.05:
		return "0"
	case size < 10:
		return fmt.Sprintf("%+.1f", perSecond)
	}
	return fmt.Sprintf("%+.0f", perSecond)
}
