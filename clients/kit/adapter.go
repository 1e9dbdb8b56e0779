package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command is one line to the adapter, as README.md describes.
type command map[string]any

// answer is one line from the adapter. It has the fields of all commands.
type answer struct {
	Tag       string      `json:"tag"`
	OK        *bool       `json:"ok"`
	Error     string      `json:"error"`
	ID        string      `json:"id"`
	Duplicate bool        `json:"duplicate"`
	Outcome   string      `json:"outcome"`
	Jobs      []answerJob `json:"jobs"`
	IDs       []string    `json:"ids"`
	Cancelled []string    `json:"cancelled"`
	PID       int         `json:"pid"`

	line string
}

type answerJob struct {
	ID         string `json:"id"`
	PayloadB64 []byte `json:"payload_b64"`
	Attempt    int64  `json:"attempt"`
	Fence      int64  `json:"fence"`

	Progress *answerProgress `json:"progress"`
}

// answerProgress is the progress of a job, as the client shows it.
type answerProgress struct {
	Done    *int64 `json:"done"`
	Total   *int64 `json:"total"`
	DataB64 []byte `json:"data_b64"`
}

// adapter is the process of the program around the client under test.
type adapter struct {
	s      *stage
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr tail
	read   chan struct{} // closed when stdout ends

	mu      sync.Mutex
	waiting []*pending          // commands without a tag that wait for an answer, in order
	tagged  map[string]*pending //
	broken  string              // why no further answers come
}

// pending is a command that the adapter is carrying out.
type pending struct {
	cmd  string
	done chan answer // capacity 1
}

// start runs the adapter in its own process group. The stage kills the whole group at its end.
func (s *stage) start() *adapter {
	args := s.kit.adapter
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+s.socket)
	if s.kit.codec != "" {
		cmd.Env = append(cmd.Env, "QSIDECAR_CODEC="+s.kit.codec)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a := &adapter{s: s, cmd: cmd, read: make(chan struct{}), tagged: make(map[string]*pending)}
	cmd.Stderr = &a.stderr
	in, err := cmd.StdinPipe()
	must(err)
	// Use our own pipe: children of the adapter can keep the other end open, and Wait must not wait
	// for them.
	out, w, err := os.Pipe()
	must(err)
	cmd.Stdout, cmd.WaitDelay = w, 100*time.Millisecond
	a.in = in
	err = cmd.Start()
	_ = w.Close() // the child has its own copy
	must(err)
	s.atEnd(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if all processes have ended
		_ = cmd.Wait()                                      // the exit status does not matter
		_ = out.Close()
		<-a.read
	})
	go a.answers(out)
	return a
}

// answers reads the adapter's lines and delivers them.
func (a *adapter) answers(out io.Reader) {
	defer close(a.read)
	why := "the adapter ended its output"
	for in := bufio.NewReader(out); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		text := strings.TrimSpace(string(line))
		a.s.note("adapter: %s", text)
		var got answer
		if err := json.Unmarshal(line, &got); err != nil || got.OK == nil {
			why = fmt.Sprintf("the adapter wrote a line that isn't an answer: %q", cut(text))
			break
		}
		got.line = text
		if why = a.deliver(got); why != "" {
			break
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.broken = why
	for _, p := range a.waiting {
		close(p.done)
	}
	for _, p := range a.tagged {
		close(p.done)
	}
	a.waiting, a.tagged = nil, nil
}

// deliver delivers an answer to its command. It returns an error text if the answer is wrong.
func (a *adapter) deliver(got answer) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if got.Tag != "" {
		p := a.tagged[got.Tag]
		if p == nil {
			return fmt.Sprintf("the adapter answered with a tag that no open command has: %q", got.line)
		}
		delete(a.tagged, got.Tag)
		p.done <- got
		return ""
	}
	if len(a.waiting) == 0 {
		return fmt.Sprintf("the adapter answered without being asked (or lost a command's tag): %q", got.line)
	}
	a.waiting[0].done <- got
	a.waiting = a.waiting[1:]
	return ""
}

// command sends a command to the adapter.
func (s *stage) command(c command) *pending {
	line, err := json.Marshal(c)
	must(err)
	a := s.adapter
	p := &pending{cmd: string(line), done: make(chan answer, 1)}
	a.mu.Lock()
	broken := a.broken
	if tag, ok := c["tag"].(string); ok && broken == "" {
		a.tagged[tag] = p
	} else if broken == "" {
		a.waiting = append(a.waiting, p)
	}
	a.mu.Unlock()
	need(broken == "", "the adapter to take commands", "%s", broken)
	s.note("command: %s", line)
	if _, err := a.in.Write(append(line, '\n')); err != nil {
		fail("the adapter to take commands", "%v", err)
	}
	return p
}

// answer waits for a command's answer.
func (s *stage) answer(p *pending) answer {
	select {
	case got, ok := <-p.done:
		if !ok {
			s.adapter.mu.Lock()
			defer s.adapter.mu.Unlock()
			fail("an answer to "+cut(p.cmd), "%s", s.adapter.broken)
		}
		return got
	case <-after(s.kit.patience):
		fail("an answer to "+cut(p.cmd), "none within %v", s.kit.patience)
		panic("unreachable")
	}
}

// ready reports whether the answer has arrived.
func (p *pending) ready() bool { return len(p.done) > 0 }

// succeeds waits for an answer without an error.
func (s *stage) succeeds(p *pending) answer {
	got := s.answer(p)
	need(*got.OK, "ok from "+cut(p.cmd), "%s", cut(got.line))
	return got
}

// fails waits for an answer with one of these error texts.
func (s *stage) fails(p *pending, texts ...string) {
	got := s.answer(p)
	for _, w := range texts {
		if !*got.OK && got.Error == w {
			return
		}
	}
	fail(fmt.Sprintf("the error %s from %s", strings.Join(texts, " or "), cut(p.cmd)), "%s", cut(got.line))
}

// tail keeps the last bytes that are written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	t.b = bytes.Clone(t.b[max(0, len(t.b)-4<<10):])
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
