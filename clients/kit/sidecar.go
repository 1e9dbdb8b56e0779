package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/protocol"
	"github.com/qsidecar/qsidecar/protocol/transcript"
)

// stage is the setup of one scenario: a socket and an adapter. Its methods belong to the scenario's
// goroutine, except note.
type stage struct {
	kit       *kit
	socket    string
	began     time.Time
	adapter   *adapter
	ln        *net.UnixListener
	cleanup   []func()
	hello     fields // added to the replies to hello, or replacing fields of it
	jobs      int    // jobs created so far
	connected bool   // the client has connected

	mu    sync.Mutex
	trace []string
}

// fields are a message as JSON has it. Bytes are in X or X_b64 (see bytes).
type fields map[string]any

func (s *stage) atEnd(f func()) { s.cleanup = append(s.cleanup, f) }

func (s *stage) end() {
	for _, f := range slices.Backward(s.cleanup) {
		f()
	}
}

// note keeps a line of the conversation for the report.
func (s *stage) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, fmt.Sprintf("%4dms ", since(s.began).Milliseconds())+cut(fmt.Sprintf(format, args...)))
}

func (s *stage) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.trace)
}

// listen binds the socket.
func (s *stage) listen() {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket, Net: "unix"})
	must(err)
	must(os.Chmod(s.socket, 0o666)) // the adapter can run as another user
	s.ln = ln
	s.atEnd(func() { _ = ln.Close() }) // unlisten may have closed it already
}

// unlisten removes the socket, as if no sidecar runs.
func (s *stage) unlisten() {
	s.note("sidecar: stopped, socket removed")
	must(s.ln.Close())
}

// starting is how long the first connection can take.
const starting = time.Minute

// peer is the sidecar's end of one connection.
type peer struct {
	s          *stage
	conn       *net.UnixConn
	in         *protocol.Reader
	unexpected []*request // requests that were read before they were expected
}

// request is a message of the client.
type request struct {
	*protocol.Request
	raw map[string]any // as received
}

// accept accepts the next connection and answers its hello, if the client sends one.
func (s *stage) accept() *peer {
	p := s.acceptRaw()
	req := p.next("a hello")
	if req.Op != protocol.OpHello {
		p.unexpected = append(p.unexpected, req) // hello is optional here; the scenario hello requires it
		return p
	}
	p.reply(req, s.helloReply())
	return p
}

func (s *stage) helloReply() fields {
	rep := fields{
		"version": 1, "server": "kit", "session": "kit-1", "features": []string{},
		"max_frame": 4 << 20, "max_payload": 4<<20 - 16<<10, "max_reply": 32 << 20,
	}
	maps.Copy(rep, s.hello)
	return rep
}

func (s *stage) acceptRaw() *peer {
	patience := s.kit.patience
	if !s.connected { // the adapter must start first, beside many others
		patience = max(patience, starting)
	}
	must(s.ln.SetDeadline(time.Now().Add(patience)))
	conn, err := s.ln.AcceptUnix()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		fail("the client to connect", "no connection within %v", patience)
	}
	must(err)
	s.connected = true
	s.note("sidecar: accepted a connection")
	s.atEnd(func() { _ = conn.Close() }) // may be closed already
	return &peer{s: s, conn: conn, in: protocol.NewReader(conn, 64<<20)}
}

// read returns the next request, or the error that ended the connection.
func (p *peer) read(patience time.Duration) (*request, error) {
	if len(p.unexpected) > 0 {
		req := p.unexpected[0]
		p.unexpected = p.unexpected[1:]
		return req, nil
	}
	must(p.conn.SetReadDeadline(time.Now().Add(patience)))
	body, codec, err := p.in.Next()
	if err != nil {
		return nil, err
	}
	if want := p.s.kit.codec; want != "" && codec.String() != want {
		fail("the client to speak "+want+" (see QSIDECAR_CODEC)", "it speaks %v", codec)
	}
	req := &request{Request: new(protocol.Request)}
	if err := codec.DecodeRequest(body, protocol.NewLimits(64<<20), req.Request); err != nil {
		fail("a request as in PROTOCOL.md", "%v: %q", err, cut(string(body)))
	}
	if codec == protocol.JSON {
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		err = d.Decode(&req.raw)
	} else {
		req.raw, err = transcript.FromMsgpack(body)
	}
	must(err)
	text, err := json.Marshal(req.raw)
	must(err)
	p.s.note("client:  %s", text)
	need(req.ID.IsSet(), "an id in every request", "%s", cut(string(text)))
	return req, nil
}

// next returns the next request. It answers and skips a ping.
func (p *peer) next(want string) *request {
	for {
		req, err := p.read(p.s.kit.patience)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			fail(want, "nothing within %v", p.s.kit.patience)
		case err != nil:
			fail(want, "the client closed the connection (%v)", err)
		case req.Op == protocol.OpPing:
			p.reply(req, fields{})
		default:
			return req
		}
	}
}

// expect returns the next request, which must have that op.
func (p *peer) expect(op protocol.Op) *request {
	req := p.next("the client to send " + string(op))
	need(req.Op == op, "the client to send "+string(op), "it sent %v", p.text(req))
	return req
}

// expectSettle returns the next request that is neither a bind nor a hello. It answers those as a
// healthy sidecar does, because the scenario is not about them.
func (p *peer) expectSettle(op protocol.Op) *request {
	for {
		req := p.next("the client to send " + string(op))
		switch {
		case req.Op == op:
			return req
		case req.Op == protocol.OpExtend && req.Bind:
			p.answerSettle(req)
		default:
			fail("the client to send "+string(op), "it sent %v", p.text(req))
		}
	}
}

func (p *peer) text(req *request) string {
	b, err := json.Marshal(req.raw)
	must(err)
	return cut(string(b))
}

// ended waits until the client closes its end of the connection.
func (p *peer) ended(patience time.Duration) error {
	for {
		req, err := p.read(patience)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
			return nil
		case err != nil:
			return err
		case req.Op == protocol.OpBye:
			p.reply(req, fields{})
			p.close()
			return nil
		}
	}
}

// leases returns the leases of a settle in either form.
func (r *request) leases() []string {
	if r.Leases != nil {
		return r.Leases
	}
	return []string{r.Lease}
}

// answerSettle answers an ack, nack or extend in the form of the request: an error for a single lost
// lease, a list of lost leases for a list.
func (p *peer) answerSettle(req *request, lost ...string) {
	if req.Leases == nil && slices.Contains(lost, req.Lease) {
		p.refuse(req, "lease_lost", nil)
		return
	}
	ofRequest := []string{}
	for _, l := range req.leases() {
		if slices.Contains(lost, l) {
			ofRequest = append(ofRequest, l)
		}
	}
	verb := map[protocol.Op]string{protocol.OpAck: "acked", protocol.OpNack: "nacked", protocol.OpExtend: "extended"}[req.Op]
	p.reply(req, fields{verb: len(req.leases()) - len(ofRequest), "lost": ofRequest})
}

// job returns a job as in a claim's reply, with its own lease.
func (s *stage) job(payload []byte) fields {
	s.jobs++
	j := fields{
		"id": fmt.Sprintf("job-%d", s.jobs), "queue": "q", "lease": fmt.Sprintf("1.kit.%d", s.jobs), "attempt": 1,
		"max_attempts": 20, "fence": s.jobs, "priority": 0, "enqueued_at": 1790000000000,
	}
	j.bytes("payload", payload)
	return j
}

// bytes adds a bytes field as a sidecar writes it.
func (f fields) bytes(name string, b []byte) {
	if utf8.Valid(b) {
		f[name] = string(b)
	} else {
		f[name+"_b64"] = base64.StdEncoding.EncodeToString(b)
	}
}

func lease(j fields) string { return j["lease"].(string) }
func id(j fields) string    { return j["id"].(string) }

func (p *peer) answerClaim(req *request, jobs ...fields) {
	list := append([]fields{}, jobs...)
	p.reply(req, fields{"jobs": list})
}

func (p *peer) reply(req *request, more fields) { p.send(p.frame(okReply(req, more))) }

func okReply(req *request, more fields) fields {
	rep := fields{"id": req.raw["id"], "ok": true}
	maps.Copy(rep, more)
	return rep
}

// refuse answers with an error. The fields of more are added to the error's map.
func (p *peer) refuse(req *request, code string, more fields) {
	e := fields{"code": code, "message": "error of the kit: " + code}
	maps.Copy(e, more)
	p.send(p.frame(fields{"id": req.raw["id"], "ok": false, "error": e}))
}

// frame encodes one message in the connection's codec.
func (p *peer) frame(m fields) []byte {
	text, err := json.Marshal(m)
	must(err)
	p.s.note("sidecar: %s", text)
	if p.in.Codec() == protocol.JSON {
		return append(text, '\n')
	}
	var plain map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	must(d.Decode(&plain))
	body, err := transcript.ToMsgpack(plain)
	must(err)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func (p *peer) send(b []byte) {
	must(p.conn.SetWriteDeadline(time.Now().Add(p.s.kit.patience)))
	if _, err := p.conn.Write(b); err != nil {
		fail("the client to read", "%v", err)
	}
}

// close closes the connection from the sidecar's side.
func (p *peer) close() {
	p.s.note("sidecar: closes the connection")
	must(p.conn.Close())
}

// unread waits until the client has sent bytes, and does not read them.
func (p *peer) unread(want string) {
	must(p.conn.SetReadDeadline(time.Now().Add(p.s.kit.patience)))
	raw, err := p.conn.SyscallConn()
	must(err)
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
	need(err == nil, want, "no request arrived (%v)", err)
}
