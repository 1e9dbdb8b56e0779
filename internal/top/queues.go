package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

// queueColumns returns the columns of queuesScreen. In 80 characters the names have 17, or 10 beside blocked jobs.
func (m *model) queueColumns() []column {
	columns := []column{
		{title: "QUEUE"}, {"READY", 6, true}, {"SCHED", 6, true}, {"CLAIMED", 7, true}, {"DEAD", 5, true},
		{"OLDEST", 6, true}, {"IN/S", 5, true}, {"OUT/S", 5, true}, {"WORKERS", 7, true}, {"STATE", 6, false},
	}
	if m.hasBlocked() {
		columns = slices.Insert(columns, 2, column{"BLOCK", 6, true})
	}
	return columns
}

// hasBlocked reports whether a queue has blocked jobs. Most users have no groups.
func (m *model) hasBlocked() bool {
	return slices.ContainsFunc(m.queues, func(q protocol.QueueStat) bool { return q.Blocked > 0 })
}

// titleIndex returns the position of a column, or 0.
func titleIndex(columns []column, title string) int {
	return max(0, slices.IndexFunc(columns, func(c column) bool { return c.title == title }))
}

// queueOrder compares queues by a column: names ascending, and numbers descending.
func (m *model) queueOrder(a, b protocol.QueueStat) int {
	byNumber := func(f func(protocol.QueueStat) int64) int { return cmp.Compare(f(b), f(a)) }
	switch m.sortBy {
	case "READY":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Ready })
	case "BLOCK":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Blocked })
	case "SCHED":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Scheduled })
	case "CLAIMED":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Claimed })
	case "DEAD":
		return byNumber(func(q protocol.QueueStat) int64 { return q.Dead })
	case "OLDEST":
		return byNumber(func(q protocol.QueueStat) int64 { return q.OldestReadyMS })
	case "IN/S":
		return cmp.Compare(m.rates.of(b.Queue).in, m.rates.of(a.Queue).in)
	case "OUT/S":
		return cmp.Compare(m.rates.of(b.Queue).out, m.rates.of(a.Queue).out)
	case "WORKERS":
		return cmp.Compare(m.workers[b.Queue], m.workers[a.Queue])
	case "STATE":
		return strings.Compare(stateOf(b), stateOf(a))
	}
	return strings.Compare(a.Queue, b.Queue)
}

func (m *model) queueRows() []row {
	m.workers = workersOf(m.status)
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
		dead, state := plain(count(q.Dead, q.Approx)), plain(stateOf(q))
		if q.Dead > 0 {
			dead.style = badStyle
		}
		if q.Paused || q.Limited != "" {
			state.style = warnStyle
		}
		speed := m.rates.of(q.Queue)
		rows[i] = row{q.Queue, []cell{
			plain(textfmt.OneLine(q.Queue, 255)), plain(count(q.Ready, q.Approx)), plain(count(q.Scheduled, q.Approx)), plain(count(q.Claimed, q.Approx)),
			dead, plain(wiretext.Age(q.OldestReadyMS)), plain(rateText(speed.in)), plain(rateText(speed.out)),
			plain(strconv.Itoa(m.workers[q.Queue])), state,
		}}
		if m.hasBlocked() {
			rows[i].cells = slices.Insert(rows[i].cells, 2, plain(count(q.Blocked, q.Approx)))
		}
	}
	return rows
}

func stateOf(q protocol.QueueStat) string {
	if q.Paused {
		return "paused"
	}
	if q.Limited != "" {
		return "limited"
	}
	return "open"
}

// workersOf returns how many sessions have jobs of each queue. status can be nil.
func workersOf(status *protocol.Status) map[string]int {
	n := make(map[string]int)
	if status != nil {
		for i := range status.Sessions {
			for _, q := range status.Sessions[i].Queues {
				n[q.Queue]++
			}
		}
	}
	return n
}

// count formats a number of jobs in at most 6 characters. ~ marks an estimate.
func count(n int64, approx bool) string {
	mark := ""
	if approx && n > 10_000 {
		mark = "~"
	}
	switch {
	case n < 100_000:
		return mark + strconv.FormatInt(n, 10)
	case n < 10_000_000:
		return mark + strconv.FormatInt(n/1000, 10) + "k"
	}
	return mark + strconv.FormatInt(n/1_000_000, 10) + "M"
}

// ratesWindow is the time over which the rates of a queue are averaged.
const ratesWindow = 10 * time.Second

// rates computes how many jobs of each queue this sidecar stores and acks per second.
type rates struct {
	samples []sample // the oldest first
}

// sample has the counters of each queue at an instant.
type sample struct {
	at   time.Time
	jobs map[string]counters
}

type counters struct{ in, out protocol.Opt[int64] }

// speed has jobs per second. Below 0: unknown.
type speed struct{ in, out float64 }

// add stores a sample, about one a second, and removes those that are older than the window.
func (r *rates) add(at time.Time, stats []protocol.QueueStat) {
	if n := len(r.samples); n > 1 && r.samples[n-1].at.Sub(r.samples[n-2].at) < time.Second {
		r.samples = r.samples[:n-1] // it is too close to the one before
	}
	s := sample{at, make(map[string]counters, len(stats))}
	for i := range stats {
		s.jobs[stats[i].Queue] = counters{stats[i].Enqueued, stats[i].Acked}
	}
	r.samples = append(r.samples, s)
	for len(r.samples) > 2 && at.Sub(r.samples[1].at) >= ratesWindow {
		r.samples = r.samples[1:]
	}
}

// of returns the rates of a queue.
func (r *rates) of(queue string) speed {
	n := len(r.samples)
	if n < 2 {
		return speed{-1, -1}
	}
	first, last := r.samples[0], r.samples[n-1]
	before, known := first.jobs[queue]
	if !known { // it is new, so its counters began at 0
		before = counters{protocol.Some[int64](0), protocol.Some[int64](0)}
	}
	after, seconds := last.jobs[queue], last.at.Sub(first.at).Seconds()
	return speed{perSecond(before.in, after.in, seconds), perSecond(before.out, after.out, seconds)}
}

// perSecond returns how fast a counter grew, or −1 if that is unknown: it has no value, or it began again with its sidecar.
func perSecond(before, after protocol.Opt[int64], seconds float64) float64 {
	if !before.Set || !after.Set || after.Value < before.Value {
		return -1
	}
	return float64(after.Value-before.Value) / seconds
}

// rateText formats a rate in at most 5 characters.
func rateText(perSecond float64) string {
	switch {
	case perSecond < 0:
		return "-"
	case perSecond == 0:
		return "0"
	case perSecond < 0.1:
		return "<0.1"
	case perSecond < 9.95:
		return fmt.Sprintf("%.1f", perSecond)
	case perSecond < 99_999.5:
		return fmt.Sprintf("%.0f", perSecond)
	}
	return fmt.Sprintf("%.0fk", perSecond/1000)
}
