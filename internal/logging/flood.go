package logging

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// floodSpan and floodLines limit repeated lines: floodLines lines of the same event are
	// written in each floodSpan. At its end one line reports how many were dropped.
	floodSpan  = 10 * time.Second
	floodLines = 50
)

// floodFilter counts lines by their events. A program has few events.
type floodFilter struct {
	mu      sync.Mutex
	windows map[string]*floodWindow
}

type floodWindow struct {
	written, dropped int
	level            slog.Level
	end              *time.Timer
}

// allow reports whether a line is written. unlimited returns a logger for the line about dropped ones.
func (f *floodFilter) allow(r *slog.Record, unlimited func() *slog.Logger) bool {
	if r.Level < slog.LevelInfo {
		return true // the debug level shows everything
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	event := eventOf(r)
	w := f.windows[event]
	if w == nil {
		if f.windows == nil {
			f.windows = make(map[string]*floodWindow)
		}
		w = &floodWindow{level: r.Level}
		f.windows[event] = w
		w.end = time.AfterFunc(floodSpan, func() { f.endWindow(event, unlimited) })
	}
	if w.written < floodLines {
		w.written++
		return true
	}
	w.dropped++
	return false
}

// eventOf returns the event of a line, which is its first key. A line without one counts by its
// message.
func eventOf(r *slog.Record) (event string) {
	event = r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "event" {
			event = a.Value.String()
		}
		return false
	})
	return event
}

// endWindow ends the window of an event.
func (f *floodFilter) endWindow(event string, unlimited func() *slog.Logger) {
	f.mu.Lock()
	w := f.windows[event]
	delete(f.windows, event)
	f.mu.Unlock()
	if w == nil {
		return // flush ended it
	}
	w.end.Stop()
	if w.dropped > 0 {
		unlimited().Log(context.Background(), w.level, "repeated log lines omitted", "event", "log_lines_omitted", "of", event, "lines", w.dropped)
	}
}

// flush ends all windows before the program exits.
func (f *floodFilter) flush(unlimited func() *slog.Logger) {
	f.mu.Lock()
	events := slices.Collect(maps.Keys(f.windows))
	f.mu.Unlock()
	for _, event := range events {
		f.endWindow(event, unlimited)
	}
}
