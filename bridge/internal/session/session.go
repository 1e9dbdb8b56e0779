// Package session is the life of one connection: it reads requests, carries them out, and ends.
//
// A session gets what it needs of its sidecar through the interface Sidecar, and does not depend on sockets, reloads or
// other sessions. The server starts, stops and describes it. Start reading at Session.Serve. A request goes from there to
// start in ops.go, and to the file of its op.
package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/outbox"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	maxOpen = 1024 // requests of one session without a reply yet

	// lastReplyTimeout is how long a client has to read its last replies when the server closes. Without it, a client that
	// stopped reading would keep the sidecar from ending.
	lastReplyTimeout = 3 * time.Second
)

// The reasons for the end of a session, as causes of its context. Its jobs are released, and their attempts count, for the
// first three; see Session.end. A session whose client only ends its input has no cause, and ends as after a bye.
var (
	ErrHangUp    = errors.New("the client hung up")
	errBadClient = errors.New("the client broke the protocol")
	errStalled   = errors.New("the client stalled in a large message while other clients waited for memory")
	errBye       = errors.New("the client sent bye")              // the attempts don't count
	errServer    = errors.New("the server closed the connection") // the leases outlive the session
)

// Session is one connection. Serve runs it; everything that the session starts ends before Serve returns.
type Session struct {
	Socket string           // path that the client connected to; empty: a stream
	Peer   *unixsocket.Peer // nil: a stream

	shared *Shared
	id     string
	conn   unixsocket.Conn // nil: a stream that has no hang-up (stdio)
	limits protocol.Limits
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
	waits    claimWaits
	quota    quota.Session
	refusals quota.RequestLimiter

	noDatabaseWait bool        // the session ended, and a request waited once for a database since; only read uses it
	evicted        atomic.Bool // closed because it stalled, see Evict
	lostWith       int         // jobs that it held when it lost its worker; only its end uses it

	mu         sync.Mutex
	worker     string
	subscribed []string       // the events that the client named in hello
	events     sync.WaitGroup // events on their way to the client
	eventsOver bool           // no more events are sent: the session waits for events
	byServer   bool
	inspecting chan struct{} // capacity 1: one large reply of this session at a time; nil: none yet; see beginInspection

	watch watch
}

func newID() string {
	var raw [8]byte
	rand.Read(raw[:]) // never fails (crypto/rand)
	return hex.EncodeToString(raw[:])
}

// New creates a session of a peer that connected to a socket of the plan. The path of a stream is empty. A nil conn is a
// stream that has no hang-up.
func New(shared *Shared, p *plan.Plan, in io.Reader, out outbox.DeadlineWriter, conn unixsocket.Conn, socket string, peer *unixsocket.Peer) *Session {
	s := &Session{
		Socket: socket,
		Peer:   peer,
		shared: shared,
		id:     newID(),
		conn:   conn,
		began:  time.Now(),
		limits: p.Limits,
		in:     in,
		reader: protocol.NewReader(in, p.Limits.MaxFrame),
		writes: out,
		slots:  make(chan struct{}, maxOpen),
	}
	var owner quota.Owner
	if peer != nil {
		owner = quota.Owner{UID: peer.UID, PID: peer.PID}
	}
	s.quota = quota.NewSession(s, owner, &shared.Memory)
	s.out = outbox.Outbox{To: out, Unread: s.quota.AddUnread, HasRoom: shared.Memory.HasRoom}
	s.gone, s.cancel = context.WithCancelCause(context.Background())
	s.grant.Store(&grant{p, p.Grant(socket, peer)})
	return s
}

// log returns a logger that names the session. Few sessions need one, and it takes 1.5 KiB.
func (s *Session) log() *slog.Logger { return s.shared.Log.With("session", s.id) }

// hangUp ends the session's waits for a reason. The first reason stays.
func (s *Session) hangUp(cause error) {
	s.cancel(cause)
	s.waits.end()
}

// peerGone reports whether the peer hung up, rather than only ended its input.
func (s *Session) peerGone() bool {
	return s.conn != nil && s.conn.HungUp()
}

// Close ends the session from the server's side. The session stops reading, finishes what it read and releases
// nothing.
func (s *Session) Close() {
	s.mu.Lock()
	s.byServer = true
	s.mu.Unlock()
	s.hangUp(errServer)
	// These fail only on a closed connection, which is the goal.
	_ = s.writes.SetWriteDeadline(time.Now().Add(lastReplyTimeout))
	if s.conn != nil {
		_ = s.conn.SetReadDeadline(time.Now())
	} else if c, ok := s.in.(io.Closer); ok {
		_ = c.Close() // our own pipe: it cannot fail
	}
}

// Cut stops the writes of a session that is being closed.
func (s *Session) Cut() { _ = s.writes.SetWriteDeadline(time.Now()) }

func (s *Session) closedByServer() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byServer
}

// HangUp ends the session of a client that does not read any more.
func (s *Session) HangUp() { s.hangUp(ErrHangUp) }

// Identify returns the session's id and the name of its worker.
func (s *Session) Identify() (session, worker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id, s.worker
}
