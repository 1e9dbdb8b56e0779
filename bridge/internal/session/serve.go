package session

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/protocol"
)

const (
	// partialTimeout is how long a client has to complete a message that it began. It is far above the needs of any
	// live client, and ends a connection that sends half a frame and stops.
	partialTimeout = time.Minute

	// yieldAfter is the number of requests that arrived together after which the reader yields to other goroutines.
	yieldAfter = 8
)

// Serve reads requests until the connection ends, and then cleans up according to the reason. It returns true if the session's
// leases outlive it, because the server closed it; see ReleaseAfterGrace. While the connection is idle, its stack has
// the frames from here to the read, so what needs a large frame is done by other functions.
func (s *Session) Serve() (keepsLeases bool) {
	forget, ok := s.watchHangUp()
	if !ok {
		return false
	}
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
		s.hangUp(ErrHangUp)
	}
	// A job whose settle is under way must not be released before it. So releaseIdle leaves such jobs out, finishReplies waits for
	// the settles of this session, and end releases the remaining jobs.
	idle := s.releaseIdle()
	s.finishReplies()
	keepsLeases = s.end(bad, idle)
	if forget != nil {
		forget()
		s.logConnected(false)
	}
	return keepsLeases
}

// watchHangUp starts to watch for a hang-up, and returns the function that ends that; nil: a stream. It returns false if it
// failed.
func (s *Session) watchHangUp() (forget func(), ok bool) {
	if s.conn == nil {
		return nil, true
	}
	s.logConnected(true)
	forget, err := s.conn.OnHangUp(s.HangUp)
	if err != nil {
		s.shared.Log.Error("connection failed", "event", "connection_failed", "error", err)
	}
	return forget, err == nil
}

// read carries out requests until the connection ends, and returns the reason.
func (s *Session) read() error {
	r := s.reader
	r.OnPartial, r.OnBuffer = s.partial, s.resized
	defer func() {
		s.reader = nil // with its buffer, while the session ends
		s.shared.Memory.EndReceive(&s.quota)
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
func (s *Session) receive(codec protocol.Codec, body []byte) error {
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
func (s *Session) carryOut(req *protocol.Request) {
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
	s.shared.Concurrent.Add(1)
	run := func() {
		defer s.shared.Concurrent.Add(-1)
		s.finish(id, f)
	}
	if c, ok := f.rest.(*pendingClaim); ok && f.waits {
		c.whenOver(run)
		return
	}
	go run()
}

func (s *Session) finish(id protocol.RequestID, f finisher) {
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

// readError maps the error that ended the reading to the one for Serve.
func (s *Session) readError(err error, bytes int) error {
	var wire *protocol.Error
	var timeout net.Error
	switch {
	case s.evicted.Load() && (s.quota.Receiving.Load() || errors.Is(err, os.ErrDeadlineExceeded)):
		return &badInput{err: busyMemory(s.shared.Memory.Exceeded()), bytes: bytes}
	case errors.As(err, &wire):
		return &badInput{err: wire, bytes: bytes}
	case errors.As(err, &timeout) && timeout.Timeout() && !s.closedByServer():
		return &badInput{err: protocol.Errorf(protocol.CodeBadFrame,
			"a message was begun and not completed within %v", partialTimeout)}
	}
	return err
}

// partial sets a deadline for the rest of a message that arrived in part, and clears it when the message is complete.
func (s *Session) partial(incomplete bool) {
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
	if s.closedByServer() { // Close ran in between, and its deadline must stay
		_ = s.conn.SetReadDeadline(time.Now())
	}
}

// resized reserves memory for the reader's buffer.
func (s *Session) resized(size int) error {
	if err := s.shared.Memory.Receive(&s.quota, s.gone.Done(), size); err != nil {
		return busyMemory(err)
	}
	return nil
}
