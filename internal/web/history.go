package web

import (
	"fmt"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

// plotPoints is the number of samples of a plot, one a minute.
const plotPoints = 60

// series holds the number of ready jobs of the last hour, the oldest first. −1: not read.
type series [plotPoints]int32

// history holds the series of all queues.
type history map[string]*samples

// samples is a ring of samples by minute.
type samples struct {
	ring series
	last int64 // the minute of the newest sample
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
		for m := max(s.last+1, minute-plotPoints+1); m <= minute; m++ {
			s.ring[m%plotPoints] = -1
		}
		s.ring[minute%plotPoints] = int32(min(stats[i].Ready, 1<<31-1))
		s.last = minute
	}
	for name, s := range h {
		if minute-s.last >= plotPoints {
			delete(h, name)
		}
	}
}

// of returns the series of a queue up to now.
func (h history) of(queue string, now time.Time) (out series) {
	s, minute := h[queue], minuteOf(now)
	for i := range out {
		m := minute - plotPoints + 1 + int64(i)
		out[i] = -1
		if s != nil && m <= s.last && m > s.last-plotPoints {
			out[i] = s.ring[m%plotPoints]
		}
	}
	return out
}

// The size of a plot, in its own units.
const plotHeight = 20

// Path returns the plot as the path of an SVG. Minutes without a sample are left out.
func (s series) Path() string {
	_, top := s.Range()
	var b strings.Builder
	pen := "M"
	for i, v := range s {
		if v < 0 {
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
