package transcript

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// maxMessage is the largest message that a server can send.
const maxMessage = 8 * protocol.MaxMaxFrame

// Run replays tr in codec against the server that dial connects to. It calls dial once for each
// connection of the transcript and closes them at the end. Each message has testwait.Limit to
// arrive. A transcript that needs time to pass (a delay, a timeout) lets the server wait, with a
// claim's wait_ms. At the first difference Run ends the test and reports the line.
func Run(t testing.TB, tr *Transcript, codec protocol.Codec, dial func(t testing.TB) net.Conn) {
	t.Helper()
	if !slices.Contains(tr.Codecs(), codec) {
		t.Fatalf("%s cannot be replayed in %v: see Transcript.Codecs", tr.Name, codec)
	}
	p := &player{t: t, tr: tr, codec: codec, dial: dial, vars: newVars(), conns: map[int]*conn{}}
	defer p.closeAll()
	for _, s := range tr.Steps {
		p.step(s)
	}
}

type player struct {
	t     testing.TB
	tr    *Transcript
	codec protocol.Codec
	dial  func(t testing.TB) net.Conn
	vars  vars
	conns map[int]*conn
}

// conn is one connection of the transcript.
type conn struct {
	net.Conn
	in     *protocol.Reader
	early  []map[string]any // received, but not matched by a step yet
	closed bool             // by the client
}

func (p *player) fatalf(s Step, format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("%s.txt:%d: "+format, append([]any{p.tr.Name, s.Line}, args...)...)
}

func (p *player) conn(s Step) *conn {
	p.t.Helper()
	c := p.conns[s.Conn]
	if c == nil {
		nc := p.dial(p.t)
		c = &conn{Conn: nc, in: protocol.NewReader(nc, maxMessage)}
		p.conns[s.Conn] = c
	}
	if c.closed {
		p.fatalf(s, "the transcript uses a connection that it closed")
	}
	return c
}

func (p *player) closeAll() {
	for n, c := range p.conns {
		if err := c.Close(); err != nil && !c.closed {
			p.t.Errorf("%s: closing connection %d: %v", p.tr.Name, n, err)
		}
	}
}

func (p *player) step(s Step) {
	p.t.Helper()
	c := p.conn(s)
	switch s.Kind {
	case Send:
		p.write(s, c, p.encode(s))
	case SendRaw:
		p.write(s, c, s.Raw)
	case Shutdown:
		half, ok := c.Conn.(interface{ CloseWrite() error })
		if !ok {
			p.fatalf(s, "a %T cannot be shut down for writing", c.Conn)
		}
		if err := half.CloseWrite(); err != nil {
			p.fatalf(s, "shutdown: %v", err)
		}
	case HangUp:
		c.closed = true
		if err := c.Close(); err != nil {
			p.fatalf(s, "close: %v", err)
		}
	case Receive:
		p.receive(s, c)
	case ServerClose:
		p.expectClose(s, c)
	}
}

// encode fills in the captured values and frames the message. If there are none, JSON is sent
// exactly as in the file.
func (p *player) encode(s Step) []byte {
	p.t.Helper()
	m, changed, err := p.vars.fill(s.Message)
	if err != nil {
		p.fatalf(s, "%v", err)
	}
	if p.codec == protocol.JSON && !changed {
		return append([]byte(s.Text), '\n')
	}
	if p.codec == protocol.JSON {
		b, err := json.Marshal(m)
		if err != nil {
			p.fatalf(s, "%v", err)
		}
		return append(b, '\n')
	}
	b, err := ToMsgpack(m)
	if err != nil {
		p.fatalf(s, "%v", err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// write sends b. If the server has already closed, which it can do in the middle of a rejected
// message, the next steps find out.
func (p *player) write(s Step, c *conn, b []byte) {
	p.t.Helper()
	if err := c.SetWriteDeadline(testwait.Deadline()); err != nil {
		p.fatalf(s, "%v", err)
	}
	_, err := c.Write(b)
	if s.Kind == SendRaw && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)) {
		return
	}
	if err != nil {
		p.fatalf(s, "sending: %v", err)
	}
}

// receive matches the message with the step's id, in any order of arrival. A step without an id
// matches the next message without one.
func (p *player) receive(s Step, c *conn) {
	p.t.Helper()
	want, _, err := p.vars.fill(map[string]any{"id": s.Message["id"]})
	if err != nil {
		want = s.Message // the id is captured here, so any message matches
	}
	for i := 0; ; i++ {
		if i == len(c.early) {
			c.early = append(c.early, p.read(s, c))
		}
		got := c.early[i]
		if err == nil && !equal(want["id"], got["id"]) {
			continue
		}
		c.early = slices.Delete(c.early, i, i+1)
		if err := p.vars.match("", s.Message, got); err != nil {
			p.fatalf(s, "%v\n got: %s\nwant: %s", err, show(got), s.Text)
		}
		return
	}
}

func (p *player) read(s Step, c *conn) map[string]any {
	p.t.Helper()
	if err := c.SetReadDeadline(testwait.Deadline()); err != nil {
		p.fatalf(s, "%v", err)
	}
	body, codec, err := c.in.Next()
	if err != nil {
		p.fatalf(s, "no such message came: %v; unmatched so far: %s\nwant: %s", err, show(c.early), s.Text)
	}
	if codec != p.codec {
		p.fatalf(s, "the server answers in %v, not %v", codec, p.codec)
	}
	m, err := decode(codec, body)
	if err != nil {
		p.fatalf(s, "the server sent %q: %v", body, err)
	}
	return m
}

func decode(codec protocol.Codec, body []byte) (map[string]any, error) {
	if codec == protocol.JSON {
		return parseMessage(string(body))
	}
	return FromMsgpack(body)
}

func (p *player) expectClose(s Step, c *conn) {
	p.t.Helper()
	if len(c.early) > 0 {
		p.fatalf(s, "the server should have closed; it sent %s", show(c.early))
	}
	if err := c.SetReadDeadline(testwait.Deadline()); err != nil {
		p.fatalf(s, "%v", err)
	}
	body, _, err := c.in.Next()
	switch {
	case err == nil:
		p.fatalf(s, "the server should have closed; it sent %q", body)
	case !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET):
		p.fatalf(s, "the server should have closed: %v", err)
	}
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
