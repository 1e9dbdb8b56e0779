package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// host is the sidecar's identity in these tests.
const host backends.Identity = 1

// kit is a Dispatcher on a clock that the test moves.
type kit struct {
	*Dispatcher
	memory  quota.Memory
	now     time.Duration
	late    bool // the heartbeat is late
	fast    bool // the queue slow is not slow
	closed  bool // the limits of the queue a let no job start
	full    bool // its cap is full
	wakes   int
	numbers uint64
}

func newKit() *kit {
	k := &kit{now: time.Hour}
	k.Dispatcher = New(Config{
		Wake:           func() { k.wakes++ },
		WakePrefetcher: func() {},
		Identity: func() backends.Identity {
			if k.late {
				return 0
			}
			return host
		},
		Stalled:     func(time.Duration) bool { return false },
		Clock:       func() time.Duration { return k.now },
		CanPrefetch: true,
		NoPrefetch:  func(queue string) bool { return queue == "slow" },
		Slow:        func(queue string) bool { return queue == "slow" && !k.fast },
		Gated:       func(string) bool { return false },
		Closed:      func(queue string) bool { return queue == "a" && k.closed },
		Full:        func(queue string) bool { return queue == "a" && k.full },
		Memory:      &k.memory,
		MaxBytes:    func() int64 { return 4 << 20 },
	})
	return k
}

// gather chooses claims for a commit that has as much memory as it needs.
func (k *kit) gather() []Group {
	groups, _ := k.Gather(host, k.number, &Budget{Left: 1 << 30, Whole: 1})
	return groups
}

func (k *kit) number() uint64 { k.numbers++; return k.numbers }

// session is a session without a connection.
type session struct {
	quota.Session
	k *kit
}

func (k *kit) session() *session {
	s := &session{k: k}
	s.Client = s
	return s
}

var errTooMany = errors.New("too many jobs")

func (*session) Identify() (string, string) { return "s", "w" }
func (*session) MayClaim([]string) bool     { return true }
func (*session) MaxJobs() int               { return 5 }
func (*session) TooManyJobs() error         { return errTooMany }
func (s *session) WakeClaims()              { s.k.wakes++ }
func (*session) Evict(bool)                 {}

// queued is a claim that waits for its answer.
func (k *kit) queued(t testing.TB, once bool, queues ...string) *Request {
	t.Helper()
	r := &Request{Session: &k.session().Session, Slots: 1, Once: once}
	if a, answered := k.Add(r, queues); answered {
		t.Fatalf("answered at once: %+v", a)
	}
	return r
}
