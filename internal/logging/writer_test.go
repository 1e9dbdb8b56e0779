package logging

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// gated is a reader of stderr that reads nothing until it is opened.
type gated struct {
	open chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
}

func (g *gated) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

// TestLogWithoutReader checks that the program can log and exit while nothing reads stderr,
// and that dropped lines are reported.
func TestLogWithoutReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gated{open: make(chan struct{})}
		log := New(g, slog.LevelInfo, false)
		for i := range 100 {
			log.Info(fmt.Sprint("more ", i))
		}
		log.Flush()
		close(g.open)
		synctest.Wait()
		log.Info("again")
		text := g.text.String()
		if !strings.Contains(text, "msg=again") || !strings.Contains(text, "lines=99") || strings.Count(text, "\n") != 3 {
			t.Errorf("the log has: %s", text)
		}
	})
}
