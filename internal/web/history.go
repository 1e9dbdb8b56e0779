package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	plotMinutes = 60
	plotHours   = 14 * 24
)

// series holds a number for each minute or hour of a time, the oldest first. −1: not known.
type series []int32

// plots are what happened to the jobs of a queue in a time.
type plots struct {
	Ready series // jobs in the database
	Rates rates
	Run   series // 95% of the runs took at most that many milliseconds
	in    string // "the last hour"
}

// rates are jobs a minute or an hour that were stored, that were acked, and attempts that failed.
type rates struct {
	In, Out, Failed series
	per             string
	here            bool // of this sidecar alone
}

// lastHour returns the plots of the last hour, which this sidecar counted.
func lastHour(h *protocol.QueueHistory, now time.Time) plots {
	p := plotsOf(h.Minutes, h.Since, now, time.Minute, plotMinutes)
	p.in, p.Rates.per, p.Rates.here = "the last hour", "minute", true
	return p
}

// lastDays returns the plots of the last 14 days, of all sidecars.
func lastDays(h *protocol.QueueHistory, now time.Time) plots {
	since := now.UnixMilli()
	if len(h.Hours) > 0 {
		since = h.Hours[0].At
	}
	p := plotsOf(h.Hours, since, now, time.Hour, plotHours)
	p.in, p.Rates.per = "the last 14 days", "hour"
	return p
}

// plotsOf returns the plots of the last n minutes or hours. What is missing since an instant did not happen. The rates of a
// minute or an hour that isn't over are left out.
func plotsOf(points []protocol.HistoryPoint, since int64, now time.Time, step time.Duration, n int) plots {
	unknown := func() series {
		s := make(series, n)
		for i := range s {
			s[i] = -1
		}
		return s
	}
	p := plots{Ready: unknown(), Rates: rates{In: unknown(), Out: unknown(), Failed: unknown()}, Run: unknown()}
	current := now.UnixMilli() / step.Milliseconds()
	index := func(at int64) int { return int(at/step.Milliseconds()-current) + n - 1 }
	for i := max(index(since), 0); i < n-1; i++ {
		p.Rates.In[i], p.Rates.Out[i], p.Rates.Failed[i] = 0, 0, 0
	}
	for i := range points {
		at := index(points[i].At)
		if at < 0 || at >= n {
			continue
		}
		p.Ready[at], p.Run[at] = small(points[i].Ready.Or(-1)), small(points[i].RunP95MS.Or(-1))
		if at < n-1 {
			p.Rates.In[at], p.Rates.Out[at], p.Rates.Failed[at] = small(points[i].Enqueued), small(points[i].Acked), small(points[i].Failed)
		}
	}
	return p
}

func small(n int64) int32 { return int32(min(n, 1<<31-1)) }

// The size of a plot, in its own units.
const plotHeight = 20

// Path returns the plot as the path of an SVG. Times without a number are left out.
func (s series) Path() string {
	_, top := s.Range()
	return s.path(top)
}

// path is Path for a plot up to top. Points on a level line are left out, because most queues are idle mostly.
func (s series) path(top int32) string {
	var b strings.Builder
	pen := "M"
	for i, v := range s {
		if v < 0 || pen == "L" && s[i-1] == v && i+1 < len(s) && s[i+1] == v {
			continue
		}
		y := float64(plotHeight - 1)
		if top > 0 {
			y -= float64(v) / float64(top) * (plotHeight - 2)
		}
		fmt.Fprintf(&b, "%s%d %.3g", pen, i, y)
		if pen == "M" {
			b.WriteString("h0") // shows a single number as a dot
		}
		pen = "L"
	}
	return b.String()
}

// Width is the width of the plot, in its own units.
func (s series) Width() int { return len(s) }

// Known reports whether there are two numbers. A single one would be a dot.
func (s series) Known() bool {
	n := 0
	for _, v := range s {
		if v >= 0 {
			n++
		}
	}
	return n > 1
}

// Range returns the smallest and the largest number.
func (s series) Range() (low, high int32) {
	low = -1
	for _, v := range s {
		if v >= 0 && (low < 0 || v < low) {
			low = v
		}
		high = max(high, v)
	}
	return max(low, 0), high
}

// last returns the last number that is known; −1: none is.
func (s series) last() int32 {
	last := int32(-1)
	for _, v := range s {
		if v >= 0 {
			last = v
		}
	}
	return last
}

// ReadyLabel describes the plot of ready jobs in words.
func (p plots) ReadyLabel() string {
	low, high := p.Ready.Range()
	return fmt.Sprintf("ready jobs in %s: %d to %d", p.in, low, high)
}

// RunLabel describes the plot of run times in words.
func (p plots) RunLabel() string {
	_, high := p.Run.Range()
	return fmt.Sprintf("run time of 95%% of the runs in %s: %s now, %s at worst", p.in, p.RunNow(), duration(high))
}

// RunNow returns the last run time.
func (p plots) RunNow() string { return duration(p.Run.last()) }

// duration returns a number of milliseconds for people.
func duration(ms int32) string {
	if ms < 0 {
		return "–"
	}
	return "≤\u202f" + (time.Duration(ms) * time.Millisecond).String()
}

// Known reports whether something is known.
func (p plots) Known() bool { return p.Ready.Known() || p.Rates.Known() || p.Run.Known() }

// PathIn, PathOut and PathFailed return the lines, which have the same scale.
func (r rates) PathIn() string { return r.In.path(r.top()) }

// PathOut is described at PathIn.
func (r rates) PathOut() string { return r.Out.path(r.top()) }

// PathFailed is described at PathIn. It is empty if nothing failed.
func (r rates) PathFailed() string {
	if _, high := r.Failed.Range(); high == 0 {
		return ""
	}
	return r.Failed.path(r.top())
}

// Width is the width of the plot, in its own units.
func (r rates) Width() int { return len(r.In) }

func (r rates) top() (top int32) {
	for _, s := range []series{r.In, r.Out, r.Failed} {
		_, high := s.Range()
		top = max(top, high)
	}
	return top
}

// Known reports whether there are two numbers.
func (r rates) Known() bool { return r.In.Known() || r.Out.Known() }

// Last returns the rates of the last full minute or hour; −1: not known.
func (r rates) Last() (last struct{ In, Out int32 }) {
	last.In, last.Out = r.In.last(), r.Out.last()
	return last
}

// Label describes the plot in words.
func (r rates) Label() string {
	_, in := r.In.Range()
	_, out := r.Out.Range()
	_, failed := r.Failed.Range()
	of := ""
	if r.here {
		of = " of this sidecar"
	}
	return fmt.Sprintf("jobs per %s%s: up to %d in, up to %d out, up to %d failed attempts", r.per, of, in, out, failed)
}
