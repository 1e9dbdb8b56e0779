package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// plotPoints is the number of samples of a plot, one a minute.
const plotPoints = 60

// series holds a number for each minute of the last hour, the oldest first. −1: not read.
type series [plotPoints]int32

// plots are the series of a queue.
type plots struct {
	Ready series // jobs in the database
	Rates rates
}

// rates are jobs a minute that this sidecar stored, and whose acks it committed.
type rates struct{ In, Out series }

// history holds the samples of all queues.
type history map[string]*samples

// samples are rings by minute.
type samples struct {
	ready, in, out  series
	last            int64 // the minute of the newest sample
	enqueued, acked protocol.Opt[int64]
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

// add adds a sample of each queue, and forgets queues that had none for an hour.
func (h history) add(stats []protocol.QueueStat, now time.Time) {
	minute := minuteOf(now)
	for i := range stats {
		s := h[stats[i].Queue]
		if s == nil {
			s = &samples{last: minute - plotPoints}
			h[stats[i].Queue] = s
		}
		s.add(&stats[i], minute)
	}
	for name, s := range h {
		if minute-s.last >= plotPoints {
			delete(h, name)
		}
	}
}

func (s *samples) add(q *protocol.QueueStat, minute int64) {
	gap := minute - s.last
	for m := max(s.last+1, minute-plotPoints+1); m <= minute; m++ {
		s.ready[m%plotPoints], s.in[m%plotPoints], s.out[m%plotPoints] = -1, -1, -1
	}
	s.ready[minute%plotPoints] = small(q.Ready)
	spread(&s.in, s.enqueued, q.Enqueued, minute, gap)
	spread(&s.out, s.acked, q.Acked, minute, gap)
	s.enqueued, s.acked, s.last = q.Enqueued, q.Acked, minute
}

// spread adds the growth of a counter to the minutes since it was read, evenly if there are several. A counter that
// shrank began again with its sidecar.
func spread(ring *series, before, after protocol.Opt[int64], minute, gap int64) {
	if !before.Set || !after.Set || gap >= plotPoints {
		return
	}
	grown := after.Value - before.Value
	if grown < 0 {
		grown = after.Value
	}
	gap = max(gap, 1)
	for m := minute - gap + 1; m <= minute; m++ {
		ring[m%plotPoints] = small(max(int64(ring[m%plotPoints]), 0) + grown/gap)
	}
}

func small(n int64) int32 { return int32(min(n, 1<<31-1)) }

// of returns the plots of a queue up to now. The rate of a minute that isn't over is left out.
func (h history) of(queue string, now time.Time) (out plots) {
	s, minute := h[queue], minuteOf(now)
	for i := range plotPoints {
		m := minute - plotPoints + 1 + int64(i)
		out.Ready[i], out.Rates.In[i], out.Rates.Out[i] = -1, -1, -1
		if s == nil || m > s.last || m <= s.last-plotPoints {
			continue
		}
		out.Ready[i] = s.ready[m%plotPoints]
		if m < minute {
			out.Rates.In[i], out.Rates.Out[i] = s.in[m%plotPoints], s.out[m%plotPoints]
		}
	}
	return out
}

// The size of a plot, in its own units.
const plotHeight = 20

// Path returns the plot as the path of an SVG. Minutes without a sample are left out.
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
			b.WriteString("h0") // shows a single sample as a dot
		}
		pen = "L"
	}
	return b.String()
}

// Known reports whether there are two samples. A single one would be a dot.
func (s series) Known() bool {
	n := 0
	for _, v := range s {
		if v >= 0 {
			n++
		}
	}
	return n > 1
}

// Range returns the smallest and the largest sample.
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

// Label describes the plot in words.
func (s series) Label() string {
	low, high := s.Range()
	return fmt.Sprintf("ready jobs in the last hour: %d to %d", low, high)
}

// PathIn and PathOut return the two lines, which have the same scale.
func (r rates) PathIn() string { return r.In.path(r.top()) }

// PathOut is described at PathIn.
func (r rates) PathOut() string { return r.Out.path(r.top()) }

func (r rates) top() int32 {
	_, in := r.In.Range()
	_, out := r.Out.Range()
	return max(in, out)
}

// Known reports whether there are two samples.
func (r rates) Known() bool { return r.In.Known() || r.Out.Known() }

// Last returns the rates of the last full minute that was read; −1: none was.
func (r rates) Last() (last struct{ In, Out int32 }) {
	last.In, last.Out = -1, -1
	for i := range r.In {
		if r.In[i] >= 0 {
			last.In, last.Out = r.In[i], r.Out[i]
		}
	}
	return last
}

// Label describes the plot in words.
func (r rates) Label() string {
	_, in := r.In.Range()
	_, out := r.Out.Range()
	return fmt.Sprintf("jobs a minute of this sidecar in the last hour: up to %d in, up to %d out", in, out)
}
