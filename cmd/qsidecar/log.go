package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync/atomic"
)

// logSettings are the level and the form of a log, which a reload changes for all
// loggers that were made of it.
type logSettings struct {
	level slog.LevelVar
	json  atomic.Bool
	flood flood
	root  *logHandler // without attributes
	out   io.Writer
}

// flush writes what the log has to say before the program ends.
func (s *logSettings) flush() { s.flood.flush(summing(s.root.now())) }

func (s *logSettings) set(c logConfig) {
	s.level.Set(c.Level.slog())
	s.json.Store(c.Format == "json")
}

// newLog is a command's log.
func (a *app) newLog(c logConfig) *slog.Logger {
	log, _ := a.changingLog(c)
	return log
}

// changingLog is a sidecar's log, and its settings.
func (a *app) changingLog(c logConfig) (*slog.Logger, *logSettings) {
	s := new(logSettings)
	s.set(c)
	o := &slog.HandlerOptions{Level: &s.level}
	w := newLogWriter(a.errOut, func(lines int) []byte {
		var line bytes.Buffer
		var h slog.Handler = slog.NewTextHandler(&line, o)
		if s.json.Load() {
			h = slog.NewJSONHandler(&line, o)
		}
		log := slog.New(h)
		log.Error("lines of the log were dropped: nobody read them", "lines", lines)
		return line.Bytes()
	})
	s.out = w
	s.root = &logHandler{s, slog.NewTextHandler(w, o), slog.NewJSONHandler(w, o)}
	return slog.New(s.root), s
}

// logHandler writes each line in the form of the moment, unless there are too many of its
// kind (see flood).
type logHandler struct {
	settings   *logSettings
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
	if !h.settings.flood.passes(&r, func(sum slog.Record) { summing(h.settings.root.now())(sum) }) {
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
