package logging

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// floodSpan and floodLines limit repeated lines: floodLines lines with the same message
	// are written in each floodSpan. At its end one line reports how many were dropped.
	floodSpan  = 10 * time.Second
	floodLines = 50
)

// floodFilter counts lines by their messages. A program has few messages.
type floodFilter struct {
	mu      sync.Mutex
	windows map[string]*floodWindow
}

type floodWindow struct {
	written, dropped int
	level            slog.Level
	end              *time.Timer
}

// allow reports whether a line is written. summary writes a line about dropped ones.
func (f *floodFilter) allow(r *slog.Record, summary func(slog.Record)) bool {
	if r.Level < slog.LevelInfo {
		return true // the debug level shows everything
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.windows[r.Message]
	if w == nil {
		if f.windows == nil {
			f.windows = make(map[string]*floodWindow)
		}
		w = &floodWindow{level: r.Level}
		f.windows[r.Message] = w
		text := r.Message
		w.end = time.AfterFunc(floodSpan, func() { f.endWindow(text, summary) })
	}
	if w.written < floodLines {
		w.written++
		return true
	}
	w.dropped++
	return false
}

// endWindow ends the window of a message.
func (f *floodFilter) endWindow(text string, summary func(slog.Record)) {
	f.mu.Lock()
	w := f.windows[text]
	delete(f.windows, text)
	f.mu.Unlock()
	if w == nil {
		return // flush ended it
	}
	w.end.Stop()
	if w.dropped > 0 {
		r := slog.NewRecord(time.Now(), w.level, "log lines were left out: there were too many of one kind", 0)
		r.AddAttrs(slog.String("of", text), slog.Int("lines", w.dropped))
		summary(r)
	}
}

// flush ends all windows before the program exits.
func (f *floodFilter) flush(summary func(slog.Record)) {
	f.mu.Lock()
	texts := make([]string, 0, len(f.windows))
	for text := range f.windows {
		texts = append(texts, text)
	}
	f.mu.Unlock()
	for _, text := range texts {
		f.endWindow(text, summary)
	}
}

// summaryWriter returns a function that writes a record to h.
func summaryWriter(h slog.Handler) func(slog.Record) {
	return func(r slog.Record) { _ = h.Handle(context.Background(), r) } // an error of the log can't be reported
}
