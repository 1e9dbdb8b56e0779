package top

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"go.uber.org/goleak"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/daemon"
	"github.com/qsidecar/qsidecar/internal/logging"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sidecar is a real sidecar on SQLite, in this process.
type sidecar struct {
	t      *testing.T
	dir    string
	socket string
	end    context.CancelFunc
	ended  chan struct{}
}

func newSidecar(t *testing.T) *sidecar {
	t.Helper()
	dir, err := os.MkdirTemp("", "qs") // short, because socket paths are
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &sidecar{t: t, dir: dir, socket: filepath.Join(dir, "s")}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *sidecar) start() {
	s.t.Helper()
	in := config.Input{Socket: s.socket, Database: "sqlite:" + filepath.Join(s.dir, "q.db"), Env: func(string) (string, bool) { return "", false }}
	c, err := in.Load()
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan struct{})
	s.end, s.ended = cancel, ended
	go func() {
		defer close(ended)
		err := daemon.Run(ctx, daemon.Options{Input: in, Load: in.Load, Log: logging.New(io.Discard, c.Log.Level.SlogLevel(), false)}, func(ctx context.Context, p *daemon.Daemon) error {
			p.Ready()
			close(ready)
			<-ctx.Done()
			return nil
		})
		if err != nil && ctx.Err() == nil {
			s.t.Errorf("the sidecar: %v", err)
		}
	}()
	testwait.Closed(s.t, "the sidecar serves", ready)
}

func (s *sidecar) stop() {
	s.t.Helper()
	s.end()
	testwait.Closed(s.t, "the sidecar's end", s.ended)
}

// client returns a worker's connection.
func (s *sidecar) client() *qsidecar.Client {
	s.t.Helper()
	c, err := qsidecar.Dial(testwait.Context(s.t), qsidecar.Options{Socket: s.socket, Worker: "tester"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// fill enqueues jobs, one a queue.
func fill(t *testing.T, c *qsidecar.Client, payload string, queues ...string) {
	t.Helper()
	jobs := make([]protocol.NewJob, len(queues))
	for i, q := range queues {
		jobs[i] = protocol.NewJob{Queue: q, Payload: []byte(payload)}
	}
	if _, err := c.EnqueueMany(testwait.Context(t), jobs); err != nil {
		t.Fatal(err)
	}
}

// kill claims a job of a queue and makes it dead.
func kill(t *testing.T, c *qsidecar.Client, queue, message string) {
	t.Helper()
	ctx := testwait.Context(t)
	jobs, err := c.Claim(ctx, qsidecar.Claim{Queues: []string{queue}, Wait: time.Minute})
	if err != nil || len(jobs) != 1 {
		t.Fatalf("claimed %v, %v", jobs, err)
	}
	if err := c.Nack(ctx, jobs[0].Lease, qsidecar.Nack{Error: message, Dead: true}); err != nil {
		t.Fatal(err)
	}
}

// view runs a model as Bubble Tea does, without a terminal.
type view struct {
	t        *testing.T
	m        *model
	messages chan tea.Msg
	stop     chan struct{}
	running  sync.WaitGroup
}

// newView returns a view of 80×24 that is connected to the sidecar.
func newView(s *sidecar) *view {
	s.t.Helper()
	v := &view{t: s.t, m: newModel(10 * time.Millisecond), messages: make(chan tea.Msg), stop: make(chan struct{})}
	w := &watcher{socket: s.socket, report: func(err error) { v.send(linkMsg{err}) }}
	c, err := qsidecar.Dial(testwait.Context(s.t), qsidecar.Options{Socket: s.socket, Worker: "top", Retry: -1, Dial: w.dial})
	if err != nil {
		s.t.Fatal(err)
	}
	v.m.client = c
	w.started.Store(true)
	s.t.Cleanup(func() {
		close(v.stop)
		c.Close()
		v.running.Wait()
	})
	v.run(v.m.Init())
	v.update(tea.WindowSizeMsg{Width: 80, Height: 24})
	return v
}

func (v *view) send(msg tea.Msg) {
	select {
	case v.messages <- msg:
	case <-v.stop:
	}
}

func (v *view) run(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	v.running.Go(func() {
		switch msg := cmd().(type) {
		case nil:
		case tea.BatchMsg:
			for _, c := range msg {
				v.run(c)
			}
		default:
			v.send(msg)
		}
	})
}

func (v *view) update(msg tea.Msg) {
	_, cmd := v.m.Update(msg)
	v.run(cmd)
}

// press sends keys: a character, or the name of a key.
func (v *view) press(keys ...string) {
	named := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "end": tea.KeyEnd, "pgup": tea.KeyPgUp}
	for _, k := range keys {
		if code, ok := named[k]; ok {
			v.update(tea.KeyPressMsg{Code: code})
			continue
		}
		v.update(tea.KeyPressMsg{Code: []rune(k)[0], Text: k})
	}
}

// screen returns the text of the screen, without the spaces at the ends of lines.
func (v *view) screen() string {
	lines := v.m.lines()
	for i, line := range lines {
		lines[i] = strings.TrimRight(ansi.Strip(line), " ")
	}
	return strings.Join(lines, "\n")
}

// until handles messages until the screen has all texts.
func (v *view) until(texts ...string) {
	v.t.Helper()
	has := func() bool {
		for _, text := range texts {
			if !strings.Contains(v.screen(), text) {
				return false
			}
		}
		return true
	}
	ctx := testwait.Context(v.t)
	for !has() {
		select {
		case msg := <-v.messages:
			v.update(msg)
		case <-ctx.Done():
			v.t.Fatalf("the screen does not show %q:\n%s", texts, v.screen())
		}
	}
}

// fits checks the size of the screen.
func (v *view) fits(width, height int) {
	v.t.Helper()
	lines := strings.Split(v.screen(), "\n")
	if len(lines) != height {
		v.t.Errorf("the screen has %d lines, not %d:\n%s", len(lines), height, v.screen())
	}
	for _, line := range lines {
		if n := ansi.StringWidth(line); n > width {
			v.t.Errorf("a line is %d wide: %q", n, line)
		}
	}
}
