package logging

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// floodSpan and floodLines bound a log: of the lines with one text, whatever else they
	// say, so many are written in such a span. When it is over, one line says how many
	// were left out.
	floodSpan  = 10 * time.Second
	floodLines = 50
)

// flood counts the lines of a log by their texts, of which a program has few.
type floodFilter struct {
	mu      sync.Mutex
	windows map[string]*floodWindow
}

type floodWindow struct {
	written, dropped int // written, and left out
	level            slog.Level
	end              *time.Timer
}

// passes reports whether the line may be written. summary writes one that sums up what was
// left out.
func (f *floodFilter) allow(r *slog.Record, summary func(slog.Record)) bool {
	if r.Level < slog.LevelInfo {
		return true // who asks for all of it gets it
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

// over ends the window of a text.
func (f *floodFilter) endWindow(text string, summary func(slog.Record)) {
	f.mu.Lock()
	w := f.windows[text]
	delete(f.windows, text)
	f.mu.Unlock()
	if w == nil {
		return // flush was first
	}
	w.end.Stop()
	if w.dropped > 0 {
		r := slog.NewRecord(time.Now(), w.level, "log lines were left out: there were too many of one kind", 0)
		r.AddAttrs(slog.String("of", text), slog.Int("lines", w.dropped))
		summary(r)
	}
}

// flush ends all windows, before the program does.
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

// summing writes a line that sums up by h.
func summaryWriter(h slog.Handler) func(slog.Record) {
	return func(r slog.Record) { _ = h.Handle(context.Background(), r) } // nobody is left to be told that it cannot be written
}
