package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// offence is a limit and a client that exceeds it as fast as it can.
type offence struct {
	limit  string
	config string // top-level lines of the sidecar's config
	code   string // the error that the client gets each time
	commit func(o *offender)
}

// offences returns the documented limits (protocol/PROTOCOL.md, and `limits` and `max_ready` of the
// config).
func offences() []offence {
	header := strings.Repeat("h", 9<<10)
	return []offence{
		{"connections in all", "limits: {connections: 33}", "busy", (*offender).connect},
		{"connections of one user", "limits: {connections_per_user: 33}", "busy", (*offender).connect},
		{"waiting claims of a connection", "", "busy", func(o *offender) {
			o.prepare(256, `{"op":"claim","id":1,"queue":"nothing","wait_ms":3600000}`)
			o.flood(`{"op":"claim","id":2,"queue":"nothing","wait_ms":3600000}`)
		}},
		{"jobs that a connection holds", "limits: {jobs_per_connection: 5}", "busy", func(o *offender) {
			o.call(`{"op":"enqueue","jobs":[` + strings.Repeat(`{"queue":"its"},`, 9) + `{"queue":"its"}]}`)
			o.call(`{"op":"claim","queue":"its","max":5}`)
			o.flood(`{"op":"claim","id":2,"queue":"its","max":5}`)
		}},
		{"names of queues", "limits: {queue_names: 4}", "busy", func(o *offender) {
			for i := range 4 {
				o.call(fmt.Sprintf(`{"op":"enqueue","queue":"name-%d"}`, i))
			}
			o.flood(`{"op":"enqueue","id":2,"queue":"name-too-many"}`)
		}},
		{"ready jobs of a queue", "defaults: {max_ready: 1000000}", "busy", func(o *offender) {
			o.call(`{"op":"enqueue","queue":"full"}`)
			o.flood(`{"op":"enqueue","id":2,"queue":"full"}`)
		}},
		{"headers", "", "bad_request", func(o *offender) {
			o.flood(`{"op":"enqueue","id":2,"queue":"q","headers":{"a":"` + header + `"}}`)
		}},
		{"payload", "max_frame: 64KiB", "too_large", func(o *offender) {
			o.each(`{"op":"enqueue","queue":"q","payload":"` + strings.Repeat("p", 50<<10) + `"}` + "\n")
		}},
		{"frame", "", "too_large", func(o *offender) {
			o.each(`{"op":"enqueue","queue":"q","payload":"` + strings.Repeat("p", 4<<20) + `"}` + "\n")
		}},
		{"memory for large messages", "limits: {buffer_memory: 8MiB}", "busy", (*offender).halves},
		{"open requests of a connection", "", "", func(o *offender) {
			o.flood(`{"op":"enqueue","id":2,"queue":"its"}`)
		}},
	}
}

// TestEachLimit checks that a client which exceeds a limit as fast as it can gets its error, while
// 31 others work. It prints their rate.
func TestEachLimit(t *testing.T) {
	for _, x := range offences() {
		t.Run(strings.ReplaceAll(x.limit, " ", "-"), func(t *testing.T) { x.judge(t) })
	}
}

func (x offence) judge(t *testing.T) {
	s := kit.NewSite(t)
	s.Extra = x.config + "\n"
	if x.config == "" {
		s.Extra = ""
	}
	s.Queues += "  full: {max_ready: 1}\n  work: {}\n"
	a := s.Start("a")
	crew := newCrew(t, a, 31)
	n := kit.Size(5_000)
	crew.work(n / 4) // so that both runs start warm
	alone := crew.work(n)
	o := &offender{t: t, socket: a.Socket, code: x.code, stop: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.commit(o)
	}()
	testwait.Until(t, "the offender exceeds the limit", func() bool { return o.errorsReceived.Load() >= 3 })
	before := o.errorsReceived.Load()
	crew.fill(n)
	began := o.errorsReceived.Load()
	beside := crew.drain(n)
	during := float64(o.errorsReceived.Load()-began) / float64(n)
	testwait.Until(t, "the offender continues", func() bool { return o.errorsReceived.Load() > before })
	told := o.errorsReceived.Load() - before
	close(o.stop)
	<-done
	kit.Figure(t, "limit of %s: 31 workers %.0f jobs/s alone, %.0f beside the offender (%.0f %%), which got %d errors",
		x.limit, alone, beside, 100*beside/alone, told)
	if x.code == "" {
		kit.Figure(t, "for each job of the others %.1f requests of the offender were carried out", during)
	}
}

// workers are workers that claim and ack one job at a time, each on its own connection.
type workers struct {
	t     *testing.T
	conns []*bareWire
	admin *kit.Conn
}

func newCrew(t *testing.T, a *kit.Sidecar, n int) *workers {
	c := &workers{t: t, admin: a.Dial()}
	for range n {
		conn, err := dialBare(a.Socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		c.conns = append(c.conns, conn)
	}
	return c
}

// work processes n jobs and returns the rate per second.
func (w *workers) work(n int) (rate float64) {
	w.t.Helper()
	w.fill(n)
	return w.drain(n)
}

// fill enqueues n jobs.
func (w *workers) fill(n int) {
	w.t.Helper()
	w.admin.Enqueue("work", n)
}

func (w *workers) drain(n int) (rate float64) {
	w.t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	errs := make(chan error, len(w.conns))
	began := kit.Monotonic()
	for _, conn := range w.conns {
		go func() { errs <- conn.drain("work", &left) }()
	}
	for range w.conns {
		if err := <-errs; err != nil {
			w.t.Errorf("a worker: %v", err)
		}
	}
	if got := w.admin.Stats("work"); got.Total() != 0 {
		w.t.Fatalf("after the work the queue has %+v", got)
	}
	return float64(n) / kit.Since(began).Seconds()
}

// bareWire is a connection with JSON lines that parses as little of the replies as possible, so
// that the client does not limit the rate.
type bareWire struct {
	net.Conn
	in  *bufio.Reader
	out []byte
}

func dialBare(socket string) (*bareWire, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &bareWire{Conn: c, in: bufio.NewReaderSize(c, 16<<10)}, nil
}

// ask sends a request and returns the line of the reply, valid until the next call.
func (b *bareWire) ask(line []byte) ([]byte, error) {
	if err := b.SetDeadline(testwait.Deadline()); err != nil {
		return nil, err
	}
	if _, err := b.Write(line); err != nil {
		return nil, err
	}
	reply, err := b.in.ReadSlice('\n')
	if err == nil && !bytes.HasPrefix(reply, []byte(`{"ok":true`)) {
		err = fmt.Errorf("%s was answered %s", line, reply)
	}
	return reply, err
}

// drain claims and acks jobs until none is left.
func (b *bareWire) drain(queue string, left *atomic.Int64) error {
	claim := []byte(`{"op":"claim","queue":"` + queue + `"}` + "\n")
	for left.Load() > 0 {
		reply, err := b.ask(claim)
		if err != nil {
			return err
		}
		_, rest, some := bytes.Cut(reply, []byte(`"lease":"`))
		if !some {
			continue // other workers have the last ones
		}
		lease, _, _ := bytes.Cut(rest, []byte(`"`))
		b.out = append(append(append(b.out[:0], `{"op":"ack","lease":"`...), lease...), "\"}\n"...)
		if _, err := b.ask(b.out); err != nil {
			return err
		}
		left.Add(-1)
	}
	return nil
}

// offender is the client that exceeds a limit. Its errors fail the test.
type offender struct {
	t              *testing.T
	socket         string
	code           string // the error that it must get; empty: none, its requests are answered or wait
	errorsReceived atomic.Int64
	wrong          sync.Once // one message is enough
	stop           chan struct{}
	conn           *kit.Wire
}

func (o *offender) stopped() bool {
	select {
	case <-o.stop:
		return true
	default:
		return false
	}
}

// dial opens a connection of the offender, which stays open.
func (o *offender) dial() *kit.Wire {
	if o.conn == nil {
		var err error
		if o.conn, err = kit.DialWire(o.socket); err != nil {
			o.t.Errorf("the offender: %v", err)
			return nil
		}
		o.t.Cleanup(func() { o.conn.Close() })
	}
	return o.conn
}

// call sends a request that is still valid.
func (o *offender) call(line string) {
	w := o.dial()
	if _, err := w.Write([]byte(line + "\n")); err != nil {
		o.t.Errorf("the offender: %v", err)
	}
	if r, err := w.Receive(); err != nil || r.Error != nil {
		o.t.Errorf("the offender's %.100s: %v %v", line, err, r)
	}
}

// prepare sends requests that get no reply yet.
func (o *offender) prepare(n int, line string) {
	if _, err := o.dial().Write(bytes.Repeat([]byte(line+"\n"), n)); err != nil {
		o.t.Errorf("the offender: %v", err)
	}
}

// flood sends the request repeatedly without waiting for replies, and reads them in parallel.
func (o *offender) flood(line string) {
	w := o.dial()
	chunk := bytes.Repeat([]byte(line+"\n"), 1+(64<<10)/len(line))
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			reply, err := w.In.ReadSlice('\n')
			if err != nil {
				if !o.stopped() {
					o.t.Errorf("the offender: %v", err)
				}
				return
			}
			o.checkReply(reply)
		}
	})
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-o.stop
		w.Close()
	}()
	for !o.stopped() {
		if _, err := w.Write(chunk); err != nil {
			break
		}
	}
	<-closed
	reading.Wait()
}

// checkReply checks that a reply is the expected one.
func (o *offender) checkReply(reply []byte) {
	want := `"ok":true`
	if o.code != "" {
		want = `"ok":false,"error":{"code":"` + o.code + `","message":"`
	}
	if !bytes.Contains(reply, []byte(want)) {
		o.wrong.Do(func() { o.t.Errorf("the offender was answered %.200s, want %q", reply, o.code) })
	}
	o.errorsReceived.Add(1)
}

// each sends the bytes repeatedly, each time on a new connection, which the server closes.
func (o *offender) each(text string) {
	for !o.stopped() {
		w, err := kit.DialWire(o.socket)
		if err != nil {
			o.t.Errorf("the offender: %v", err)
			return
		}
		o.rejected(w, text)
	}
}

// connect opens too many connections.
func (o *offender) connect() {
	o.dial()
	o.call(`{"op":"ping"}`)
	o.each("{\"op\":\"ping\"}\n")
}

// halves sends half of a large message on many connections, and again when the server closes them.
func (o *offender) halves() {
	half := `{"op":"enqueue","queue":"q","payload":"` + strings.Repeat("p", 2<<20)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { o.each(half) })
	}
	all.Wait()
}

// rejected sends the bytes and expects the error and a close.
func (o *offender) rejected(w *kit.Wire, text string) {
	defer w.Close()
	if err := w.SetDeadline(testwait.Deadline()); err != nil {
		o.t.Errorf("the offender: %v", err)
	}
	go func() { _, _ = io.WriteString(w, text) }() // the server stops reading
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-o.stop:
			_ = w.Close() // the result does not matter any more
		case <-done:
		}
	}()
	reply, err := w.In.ReadBytes('\n')
	if err != nil {
		if !o.stopped() {
			o.t.Errorf("the offender got no error: %v", err)
		}
		return
	}
	o.checkReply(reply)
	if rest, err := io.ReadAll(w.In); len(rest) > 0 || err != nil && !kit.IsReset(err) && !errors.Is(err, net.ErrClosed) {
		o.t.Errorf("after the error the offender got %.100q, %v; want the end", rest, err)
	}
}
