package e2e

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// scissors cut one connection, once so many bytes went through it in their
// direction since they were opened. They are a toxic: one for each direction.
type scissors struct {
	mu    sync.Mutex
	n     int           // how often they were opened
	after int64         // bytes; < 0: they only count
	most  int64         // that went through one connection
	cut   chan struct{} // closed when they cut; nil: they are shut
}

// shears are those in use, by direction; toxiproxy makes copies of toxics, so
// they cannot hold anything themselves.
var shears = map[string]*scissors{"upstream": {}, "downstream": {}}

// open has them cut after so many bytes, or only count them (after < 0).
func (s *scissors) open(after int64) (cut <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n, s.after, s.most, s.cut = s.n+1, after, 0, make(chan struct{})
	return s.cut
}

// shut returns how many bytes went through one connection at most.
func (s *scissors) shut() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = nil
	return s.most
}

// strand is one connection's share.
type strand struct {
	n    int // when bytes were counted last: see scissors.n
	sent int64
}

// pass reports how much of a piece may still go through.
func (s *scissors) pass(x *strand, bytes int) (pass int, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.n != s.n {
		*x = strand{n: s.n}
	}
	before := x.sent
	x.sent += int64(bytes)
	s.most = max(s.most, x.sent)
	if s.cut == nil || s.after < 0 || x.sent < s.after {
		return bytes, false
	}
	close(s.cut)
	s.cut = nil
	return int(max(s.after-before, 0)), true
}

// cutToxic puts scissors into toxiproxy.
type cutToxic struct {
	Stream string `json:"stream"`
}

func (*cutToxic) NewState() any { return new(strand) }

// Pipe implements toxics.Toxic.
func (t *cutToxic) Pipe(stub *toxics.ToxicStub) {
	s, x := shears[t.Stream], stub.State.(*strand)
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			pass, cut := s.pass(x, len(c.Data))
			if pass > 0 {
				stub.Output <- &stream.StreamChunk{Timestamp: c.Timestamp, Data: c.Data[:pass]}
			}
			if cut {
				stub.Close()
				for c := range stub.Input { // whoever still writes is let go
					if c == nil {
						return
					}
				}
				return
			}
		}
	}
}

// cutPoints are after how many bytes of a way of n to cut: all along it, and
// closely at its end, where the commit is.
func cutPoints(n int64) (at []int64) {
	coarse, fine := n/12, int64(16)
	if soak {
		coarse, fine = max(n/100, 1), 2
	}
	for x := int64(1); x < n; x += max(coarse, 1) {
		at = append(at, x)
	}
	for x := max(n-120, 1); x <= n; x += fine {
		at = append(at, x)
	}
	slices.Sort(at)
	return slices.Compact(at)
}

// TestPostgresCutPoints: the network is cut at each point of a claim's and of an
// ack's way to the server and back, before the commit and after it. Nobody else
// gets the job, no delivery is charged for it, and no ack is lost.
func TestPostgresCutPoints(t *testing.T) {
	toxics.Register("qsidecar_cut", new(cutToxic))
	s, p := newPostgresSite(t)
	s.hostLease = 20 * time.Second // beats and looks are rare: what is cut is a claim or an ack
	wire, through := p.network()
	producer := s.started("b").dial()
	wire.replace(`{"type": "qsidecar_cut", "stream": "upstream", "attributes": {"stream": "upstream"}}`,
		`{"type": "qsidecar_cut", "stream": "downstream", "attributes": {"stream": "downstream"}}`)
	s.url = through
	a := s.started("a")
	w := a.dial()
	seen := map[string]bool{}
	claim := func() wireJob {
		t.Helper()
		job := w.claimOne("mail")
		if seen[job.ID] || job.Attempt != 1 {
			t.Errorf("job %s: attempt %d, seen before: %v", job.ID, job.Attempt, seen[job.ID])
		}
		seen[job.ID] = true
		return job
	}
	ack := func(job wireJob) {
		t.Helper()
		w.must(msg{"op": "ack", "lease": job.Lease})
	}
	for _, way := range []string{"upstream", "downstream"} {
		cutters := shears[way]
		var claims, acks []int64
		for range 9 { // the first ones prepare their statements
			producer.enqueueN("mail", 1)
			cutters.open(-1)
			job := claim()
			claims = append(claims, cutters.shut())
			cutters.open(-1)
			ack(job)
			acks = append(acks, cutters.shut())
		}
		slices.Sort(claims)
		slices.Sort(acks)
		// Not the median: on a busy machine more than half of them may need a second look.
		claimBytes, ackBytes := claims[len(claims)/4], acks[len(acks)/4]
		cut, missed := 0, 0
		var slowest time.Duration
		hit := func(c <-chan struct{}, began time.Time) {
			cutters.shut()
			slowest = max(slowest, time.Since(began))
			select {
			case <-c:
				cut++
			default:
				missed++ // it took fewer bytes this time
			}
		}
		for _, at := range cutPoints(claimBytes) {
			producer.enqueueN("mail", 1)
			c, began := cutters.open(at), time.Now()
			job := claim()
			hit(c, began)
			ack(job)
		}
		for _, at := range cutPoints(ackBytes) {
			producer.enqueueN("mail", 1)
			job := claim()
			c, began := cutters.open(at), time.Now()
			ack(job)
			hit(c, began)
		}
		figure(t, "%s: a claim has %d bytes, an ack %d; cut at %d points, the slowest answer took %v", way, claimBytes, ackBytes, cut, slowest.Round(time.Millisecond))
		if missed > cut/4 {
			t.Errorf("%s: %d of %d cuts met nothing", way, missed, cut+missed)
		}
	}
	if left := p.jobs(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
