package logging

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync/atomic"
)

// Log is a logger whose level and form can change, also for loggers derived from it.
type Log struct {
	*slog.Logger
	level slog.LevelVar
	json  atomic.Bool
	flood floodFilter
	root  *logHandler // without attributes
	out   io.Writer
}

// New returns a log that writes to w.
func New(w io.Writer, level slog.Level, json bool) *Log {
	l := new(Log)
	l.Set(level, json)
	o := &slog.HandlerOptions{Level: &l.level}
	out := newLogWriter(w, func(lines int) []byte {
		var line bytes.Buffer
		var h slog.Handler = slog.NewTextHandler(&line, o)
		if l.json.Load() {
			h = slog.NewJSONHandler(&line, o)
		}
		log := slog.New(h)
		log.Error("log lines lost", "event", "log_lines_lost", "lines", lines)
		return line.Bytes()
	})
	l.out = out
	l.root = &logHandler{l, slog.NewTextHandler(out, o), slog.NewJSONHandler(out, o)}
	l.Logger = slog.New(l.root)
	return l
}

// Set changes the level and the form.
func (l *Log) Set(level slog.Level, json bool) {
	l.level.Set(level)
	l.json.Store(json)
}

// Writer returns the writer of the log. A write to it takes at most writeTimeout.
func (l *Log) Writer() io.Writer { return l.out }

// Flush reports dropped lines before the program exits.
func (l *Log) Flush() { l.flood.flush(l.unlimited) }

// unlimited returns a logger without floodFilter, in the current form.
func (l *Log) unlimited() *slog.Logger { return slog.New(l.root.now()) }

// logHandler writes each line in the current form, unless floodFilter drops it.
type logHandler struct {
	settings   *Log
	text, json slog.Handler // with the same attributes and groups
}

func (h *logHandler) now() slog.Handler {
	if h.settings.json.Load() {
		return h.json
	}
	return h.text
}

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.now().Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.settings.flood.allow(&r, h.settings.unlimited) {
		return nil
	}
	return h.now().Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.settings, h.text.WithAttrs(attrs), h.json.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.settings, h.text.WithGroup(name), h.json.WithGroup(name)}
}
