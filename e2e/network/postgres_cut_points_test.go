package network

import (
	"slices"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/proxy"
)

// cutPoints returns after how many of n bytes to cut: all over the range, and each of the last
// bytes, where the commit is.
func cutPoints(n int64) (at []int64) {
	coarse, fine := n/12, int64(16)
	if kit.Soak {
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

// TestPostgresCutPoints cuts the network at each point of a claim's and of an ack's round trip,
// before and after the commit. No other worker gets the job, no delivery uses up an attempt, and no
// ack is lost.
func TestPostgresCutPoints(t *testing.T) {
	toxics.Register("qsidecar_cut", new(proxy.CutToxic))
	s, p := kit.NewPostgresSite(t)
	s.SidecarTimeout = 20 * time.Second // a long timeout, so that few other statements run during the cuts
	wire, through := p.Proxy()
	producer := s.Start("b").Dial()
	wire.SetToxics(`{"type": "qsidecar_cut", "stream": "upstream", "attributes": {"stream": "upstream"}}`,
		`{"type": "qsidecar_cut", "stream": "downstream", "attributes": {"stream": "downstream"}}`)
	s.URL = through
	a := s.Start("a")
	w := a.Dial()
	seen := map[string]bool{}
	claim := func() kit.Job {
		t.Helper()
		job := w.ClaimOne("mail")
		if seen[job.ID] || job.Attempt != 1 {
			t.Errorf("job %s: attempt %d, seen before: %v", job.ID, job.Attempt, seen[job.ID])
		}
		seen[job.ID] = true
		return job
	}
	ack := func(job kit.Job) {
		t.Helper()
		w.Must(kit.Msg{"op": "ack", "lease": job.Lease})
	}
	for _, way := range []string{"upstream", "downstream"} {
		cutters := proxy.Cutters[way]
		var claims, acks []int64
		for range 9 { // the first ones prepare their statements
			producer.Enqueue("mail", 1)
			cutters.Open(-1)
			job := claim()
			claims = append(claims, cutters.Shut())
			cutters.Open(-1)
			ack(job)
			acks = append(acks, cutters.Shut())
		}
		slices.Sort(claims)
		slices.Sort(acks)
		// Not the median, because on a busy machine more than half of them can need a second query.
		claimBytes, ackBytes := claims[len(claims)/4], acks[len(acks)/4]
		cut, missed := 0, 0
		var slowest time.Duration
		hit := func(c <-chan struct{}, began int64) {
			cutters.Shut()
			slowest = max(slowest, kit.Since(began))
			select {
			case <-c:
				cut++
			default:
				missed++ // it took fewer bytes this time
			}
		}
		for _, at := range cutPoints(claimBytes) {
			producer.Enqueue("mail", 1)
			c, began := cutters.Open(at), kit.Monotonic()
			job := claim()
			hit(c, began)
			ack(job)
		}
		for _, at := range cutPoints(ackBytes) {
			producer.Enqueue("mail", 1)
			job := claim()
			c, began := cutters.Open(at), kit.Monotonic()
			ack(job)
			hit(c, began)
		}
		kit.Figure(t, "%s: a claim has %d bytes, an ack %d; cut at %d points, the slowest answer took %v", way, claimBytes, ackBytes, cut, slowest.Round(time.Millisecond))
		if cut == 0 {
			t.Errorf("%s: none of %d cuts met anything", way, missed)
		}
	}
	if left := p.Jobs(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
