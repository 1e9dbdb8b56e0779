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
type flood struct {
	mu    sync.Mutex
	texts map[string]*floodWindow
}

type floodWindow struct {
	lines, left int // written, and left out
	level       slog.Level
	end         *time.Timer
}

// passes reports whether the line may be written. summary writes one that sums up what was
// left out.
func (f *flood) passes(r *slog.Record, summary func(slog.Record)) bool {
	if r.Level < slog.LevelInfo {
		return true // who asks for all of it gets it
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.texts[r.Message]
	if w == nil {
		if f.texts == nil {
			f.texts = make(map[string]*floodWindow)
		}
		w = &floodWindow{level: r.Level}
		f.texts[r.Message] = w
		text := r.Message
		w.end = time.AfterFunc(floodSpan, func() { f.over(text, summary) })
	}
	if w.lines < floodLines {
		w.lines++
		return true
	}
	w.left++
	return false
}

// over ends the window of a text.
func (f *flood) over(text string, summary func(slog.Record)) {
	f.mu.Lock()
	w := f.texts[text]
	delete(f.texts, text)
	f.mu.Unlock()
	if w == nil {
		return // flush was first
	}
	w.end.Stop()
	if w.left > 0 {
		r := slog.NewRecord(time.Now(), w.level, "log lines were left out: there were too many of one kind", 0)
		r.AddAttrs(slog.String("of", text), slog.Int("lines", w.left))
		summary(r)
	}
}

// flush ends all windows, before the program does.
func (f *flood) flush(summary func(slog.Record)) {
	f.mu.Lock()
	texts := make([]string, 0, len(f.texts))
	for text := range f.texts {
		texts = append(texts, text)
	}
	f.mu.Unlock()
	for _, text := range texts {
		f.over(text, summary)
	}
}

// summing writes a line that sums up by h.
func summing(h slog.Handler) func(slog.Record) {
	return func(r slog.Record) { _ = h.Handle(context.Background(), r) } // nobody is left to be told that it cannot be written
}
