package bridge

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/claimwait"
	"github.com/qsidecar/qsidecar/bridge/internal/outbox"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/bridge/internal/watch"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	maxOpen    = 1024 // requests of one session without a reply yet
	maxWaiting = 256  // waiting claims among them
	maxNamed   = 4096 // queues that its open claims name in total: each takes some hundred bytes

	// partialTimeout is how long a client has to complete a message that it began. It is far above the needs of any
	// live client, and ends a connection that sends half a frame and stops.
	partialTimeout = time.Minute

	// lingerTimeout is how long the server reads and discards the input of a client that broke the protocol. It lets
	// the client read the error.
	lingerTimeout = time.Second

	// lastReplyTimeout is how long a client has to read its last replies when the server closes. Without it, a client that
	// stopped reading would keep the sidecar from ending.
	lastReplyTimeout = 3 * time.Second

	// releaseTimeout is how long the end of a session waits for the release of its jobs. The release continues after
	// that.
	releaseTimeout = 5 * time.Second

	// yieldAfter is the number of requests that arrived together after which the reader yields to other goroutines.
	yieldAfter = 8
)

// The reasons for the end of a session, as causes of its context.
var (
	errHangUp    = errors.New("the client hung up")
	errBye       = errors.New("the client sent bye")
	errBadClient = errors.New("the client broke the protocol")
	errStalled   = errors.New("the client stalled in a large message while other clients waited for memory")
	errServer    = errors.New("the server closed the connection")
)

// session is one connection. serve runs it; everything that the session starts ends before serve returns.
type session struct {
	bridge *Bridge
	id     string
	conn   unixsocket.Conn // nil: a stream that has no hang-up (stdio)
	socket string          // path that the client connected to; empty: a stream
	limits protocol.Limits
	peer   *unixsocket.Peer // nil: a stream
	began  time.Time
	grant  atomic.Pointer[grant] // never nil; see granted
	in     io.Reader
	reader *protocol.Reader      // of in, while read uses it; on the heap, which takes less than a larger stack
	writes outbox.DeadlineWriter // where out writes to
	out    outbox.Outbox

	// gone is done when the client can't read replies any more, or when the session must not wait for jobs any
	// longer. Then waiting claims end, and all other requests are carried out.
	gone   context.Context
	cancel context.CancelCauseFunc // of gone; see hangUp

	codec    atomic.Uint32 // protocol.Codec, once it is known
	slots    chan struct{} // maxOpen
	requests sync.WaitGroup
	waiting  atomic.Int64
	named    atomic.Int64 // see maxNamed
	waits    claimwait.Waits
	quota    quota.Session
	refusals quota.RequestLimiter

	noDatabaseWait bool        // the session ended, and a request waited once for a database since; only read uses it
	evicted        atomic.Bool // closed because it stalled, see Evict

	mu         sync.Mutex
	worker     string
	subscribed []string       // the events that the client named in hello
	events     sync.WaitGroup // events on their way to the client
	eventsOver bool           // no more events are sent: the session waits for events
	byServer   bool
	inspecting chan struct{} // capacity 1: one large reply of this session at a time; nil: none yet; see beginInspection

	watch watch.Watch
}

func newSessionID() string {
	var raw [8]byte
	rand.Read(raw[:]) // never fails (crypto/rand)
	return hex.EncodeToString(raw[:])
}

// newSession creates the session of a peer that connected to a socket of the plan.
func newSession(b *Bridge, p *plan, in io.Reader, out outbox.DeadlineWriter, conn unixsocket.Conn, socket *Socket, who *unixsocket.Peer) *session {
	id := newSessionID()
	s := &session{
		bridge: b,
		id:     id,
		conn:   conn,
		socket: socket.Path,
		peer:   who,
		began:  time.Now(),
		limits: p.limits,
		in:     in,
		reader: protocol.NewReader(in, p.limits.MaxFrame),
		writes: out,
		slots:  make(chan struct{}, maxOpen),
	}
	var owner quota.Owner
	if who != nil {
		owner = quota.Owner{UID: who.UID, PID: who.PID}
	}
	s.quota = quota.NewSession(s, owner, &b.memory)
	s.out = outbox.Outbox{To: out, Unread: s.quota.AddUnread, HasRoom: b.memory.HasRoom}
	s.gone, s.cancel = context.WithCancelCause(context.Background())
	s.grant.Store(p.grants(socket, who))
	return s
}

// log returns a logger that names the session. Few sessions need one, and it takes 1.5 KiB.
func (s *session) log() *slog.Logger { return s.bridge.log.With("session", s.id) }

// serve reads requests until the connection ends, and then cleans up according to the reason.
func (s *session) serve() {
	err := s.read()
	var bad *badInput
	switch {
	case s.closedByServer():
		s.hangUp(errServer)
	case errors.As(err, &bad) && s.evicted.Load():
		s.hangUp(errStalled)
	case errors.As(err, &bad):
		s.hangUp(errBadClient)
	case errors.Is(err, errBye):
		s.hangUp(errBye)
	case errors.Is(err, io.EOF) && !s.peerGone():
		// Only the client's writing side ended: waiting claims go on until a hang-up.
	default:
		s.hangUp(errHangUp)
	}
	s.finishReplies()
	s.end(bad)
}

// finishReplies waits until every reply and event was sent, or can't be sent any more. No event is sent after that.
func (s *session) finishReplies() {
	s.requests.Wait()
	s.mu.Lock()
	s.eventsOver = true
	s.mu.Unlock()
	s.events.Wait()
}

// read carries out requests until the connection ends, and returns the reason.
func (s *session) read() error {
	r := s.reader
	r.OnPartial, r.OnBuffer = s.partial, s.resized
	defer func() {
		s.reader = nil // with its buffer, while the session ends
		s.bridge.memory.EndReceive(&s.quota)
	}()
	burst := 0
	for {
		body, codec, err := r.Next()
		s.codec.Store(uint32(r.Codec()))
		if err != nil {
			return s.readError(err, r.Buffered())
		}
		if err := s.receive(codec, body); err != nil {
			return err
		}
		if burst++; !r.Partial() {
			burst = 0
		} else if burst%yieldAfter == 0 {
			runtime.Gosched() // a client that sends without waiting must not starve other sessions
		}
	}
}

// requestPool has empty requests. A session that waits for its client keeps none.
var requestPool = sync.Pool{New: func() any { return new(protocol.Request) }}

// receive decodes a request and carries it out. An error ends the connection.
func (s *session) receive(codec protocol.Codec, body []byte) error {
	req := requestPool.Get().(*protocol.Request)
	defer func() {
		*req = protocol.Request{}
		requestPool.Put(req)
	}()
	s.slots <- struct{}{}
	if wire := codec.DecodeRequest(body, s.limits, req); wire != nil {
		<-s.slots
		if wire.Fatal() {
			return &badInput{id: req.ID, err: wire, bytes: len(body)}
		}
		s.answerAsync(req.ID, &protocol.Reply{Error: wire})
		s.refusals.Throttle(s.gone.Done())
		return nil
	}
	if req.Op == protocol.OpBye {
		<-s.slots
		return s.bye(req.ID)
	}
	s.carryOut(req)
	return nil
}

// carryOut starts a request in the order of arrival. If the request has no id, carryOut waits for the reply.
// Otherwise a goroutine waits for it, unless the request keeps much memory or the session is crowded.
func (s *session) carryOut(req *protocol.Request) {
	id := req.ID
	f := s.start(req)
	if f.rest == nil {
		<-s.slots
		s.answerAsync(id, f.reply)
		if f.reply.Error != nil {
			s.refusals.Throttle(s.gone.Done())
		}
		return
	}
	s.requests.Add(1)
	if !id.IsSet() || f.keeps || !f.waits && s.crowded() {
		if f.waits {
			_ = s.reader.Shrink() // an error does not matter: a smaller buffer needs no reservation
			s.quota.Blocked.Store(true)
			defer s.quota.Blocked.Store(false)
		}
		s.finish(id, f)
		return
	}
	s.bridge.concurrent.Add(1)
	run := func() {
		defer s.bridge.concurrent.Add(-1)
		s.finish(id, f)
	}
	if c, ok := f.rest.(*pendingClaim); ok && f.waits {
		c.whenOver(run)
		return
	}
	go run()
}

func (s *session) finish(id protocol.RequestID, f finisher) {
	defer s.requests.Done()
	defer func() { <-s.slots }()
	reply, sent := f.rest.wait()
	if reply != nil {
		s.answer(id, reply)
	}
	if sent != nil {
		sent()
	}
}

func (s *session) answer(id protocol.RequestID, reply *protocol.Reply) {
	reply.ID = id
	reply.OK = reply.Error == nil
	s.send(reply)
}

// answerAsync is answer without waiting for the write, for a request with an id: its client can send many requests
// before it reads a reply.
func (s *session) answerAsync(id protocol.RequestID, reply *protocol.Reply) {
	if !id.IsSet() {
		s.answer(id, reply)
		return
	}
	reply.ID, reply.OK = id, reply.Error == nil
	first, err := s.out.Post(s.encoded(reply))
	if first {
		s.requests.Go(func() { s.written(s.out.Flush()) })
	}
	s.written(err)
}

// send writes a message. If the session has other open requests, send first lets goroutines run that have replies,
// too: one commit answers many requests. One write sends all of them.
func (s *session) send(reply *protocol.Reply) {
	first, err := s.out.Post(s.encoded(reply))
	if first {
		if len(s.slots) > 1 {
			runtime.Gosched()
		}
		err = s.out.Flush()
	}
	s.written(err)
}

// written ends the session after a write error: the client is gone.
func (s *session) written(err error) {
	if err != nil {
		s.hangUp(errHangUp)
	}
}

// sendEvent sends an event to a client that subscribed to it. It does not wait for the client. The session ends only
// after the event was sent.
func (s *session) sendEvent(event string, lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.subscribed, event) && !s.eventsOver {
		s.events.Go(func() { s.send(&protocol.Reply{Event: event, Lost: lost}) })
	}
}

// readError maps the error that ended the reading to the one for serve.
func (s *session) readError(err error, bytes int) error {
	var wire *protocol.Error
	var timeout net.Error
	switch {
	case s.evicted.Load() && (s.quota.Receiving.Load() || errors.Is(err, os.ErrDeadlineExceeded)):
		return &badInput{err: busyMemory(s.bridge.memory.Exceeded()), bytes: bytes}
	case errors.As(err, &wire):
		return &badInput{err: wire, bytes: bytes}
	case errors.As(err, &timeout) && timeout.Timeout() && !s.closedByServer():
		return &badInput{err: protocol.Errorf(protocol.CodeBadFrame,
			"a message was begun and not completed within %v", partialTimeout)}
	}
	return err
}

// partial sets a deadline for the rest of a message that arrived in part, and clears it when the message is complete.
func (s *session) partial(incomplete bool) {
	s.quota.Receiving.Store(incomplete)
	if !incomplete {
		s.evicted.Store(false)
	}
	if s.conn == nil || s.closedByServer() {
		return
	}
	var until time.Time
	if incomplete {
		until = time.Now().Add(partialTimeout)
	}
	// An error means that the connection is closed: the next read returns it.
	_ = s.conn.SetReadDeadline(until)
	if s.closedByServer() { // close ran in between, and its deadline must stay
		_ = s.conn.SetReadDeadline(time.Now())
	}
}
