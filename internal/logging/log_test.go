package logging

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"testing/synctest"
	"time"
)

// TestLogHandler checks both forms with the tests of log/slog.
func TestLogHandler(t *testing.T) {
	var out bytes.Buffer
	log := New(&out, slog.LevelInfo, false)
	log.Set(slog.LevelInfo, true) // the tests derive their loggers from it
	slogtest.Run(t, func(t *testing.T) slog.Handler { out.Reset(); return log.Handler() }, func(t *testing.T) map[string]any {
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		return line
	})
}

// TestLogChanges checks that a change applies to loggers that were derived before.
func TestLogChanges(t *testing.T) {
	var out bytes.Buffer
	log := New(&out, slog.LevelInfo, false)
	derived := log.With("database", "main").WithGroup("g").With("a", 1)
	for _, c := range []struct {
		level slog.Level
		json  bool
		want  string
	}{
		{slog.LevelInfo, false, `level=INFO msg=hello database=main g.a=1 g.b=2`},
		{slog.LevelInfo, true, `"msg":"hello","database":"main","g":{"a":1,"b":2}}`},
		{slog.LevelWarn, true, ""},
		{slog.LevelDebug, false, `level=INFO msg=hello database=main g.a=1 g.b=2`},
	} {
		out.Reset()
		log.Set(c.level, c.json)
		derived.Info("hello", "b", 2)
		if got := out.String(); !strings.HasSuffix(strings.TrimSpace(got), c.want) || (c.want == "") != (got == "") {
			t.Errorf("%v, JSON %v: %q, want it to end in %q", c.level, c.json, got, c.want)
		}
	}
}

// TestLogDoesNotFlood checks that repeated lines are limited and summed up, and that other
// lines and debug lines are all written.
func TestLogDoesNotFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(lockedBuffer) // a timer writes to it concurrently
		log := New(out, slog.LevelDebug, false)
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				log.With("n", i).Info(fmt.Sprint("job ", i), "event", "attempt_failed")
				log.Debug("details")
			})
		}
		log.Warn("something else")
		all.Wait()
		wantCount := func(what string, want int) {
			t.Helper()
			if got := strings.Count(out.String(), what); got != want {
				t.Errorf("%d times %q, want %d", got, what, want)
			}
		}
		wantCount("event=attempt_failed", floodLines)
		wantCount("details", 1000)
		wantCount("something else", 1)
		time.Sleep(floodSpan)
		synctest.Wait()
		wantCount(fmt.Sprintf(`of=attempt_failed lines=%d`, 1000-floodLines), 1)

		out.Reset()
		for range floodLines + 7 {
			log.Info("job", "event", "attempt_failed")
		}
		log.Flush()
		wantCount("attempt_failed", floodLines+1)
		wantCount(`lines=7`, 1)
		time.Sleep(2 * floodSpan)
		synctest.Wait()
		wantCount("lines=", 1)
	})
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
