package dispatch

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// TestClaimMemoryIsDivided shows that many wait queues share the memory if there is only enough for a few large
// answers. A wait
// queue whose next job did not fit its share gets a whole answer the next time.
func TestClaimMemoryIsDivided(t *testing.T) {
	queues := make([]waitQueue, 40)
	ask1 := func(left int64) ([]Group, Budget) {
		s := Budget{Left: left, Whole: 4 << 20}
		var groups []Group
		for i := range queues {
			if s.reserve(&queues[i]) {
				groups = append(groups, Group{queue: &queues[i]})
			}
		}
		s.divide(groups)
		return groups, s
	}
	learn := func(g *Group, result backends.ClaimResult) bool {
		res, _, short := g.merge([]backends.ClaimResult{result})
		return g.learn(res, short)
	}
	groups, s := ask1(8 << 20)
	if len(groups) != 40 || groups[0].Bytes != 8<<20/40 || s.Left < 0 || s.Left > 40 || s.Short {
		t.Fatalf("%d queues are asked for, the first for %d bytes; %+v is left", len(groups), groups[0].Bytes, s)
	}
	if !learn(&groups[3], backends.ClaimResult{More: true}) || !queues[3].large {
		t.Error("a line whose next job is too large is not known as such")
	}
	if learn(&groups[4], backends.ClaimResult{}) || queues[4].large {
		t.Error("an empty line is taken for one with a large job")
	}
	groups, s = ask1(8 << 20)
	if len(groups) != 40 || groups[3].Bytes != 0 || groups[5].Bytes != 4<<20/39 || s.Left < 0 {
		t.Errorf("%d queues are asked for, the large one for %d bytes, another one for %d; %+v is left", len(groups), groups[3].Bytes, groups[5].Bytes, s)
	}
	if learn(&groups[3], backends.ClaimResult{Jobs: make([]backends.Job, 1)}); queues[3].large {
		t.Error("a line whose job was small is still large")
	}
	if groups, s = ask1(10 * quota.MinClaim); len(groups) != 10 || !s.Short {
		t.Errorf("with little memory %d queues are asked for, %+v", len(groups), s)
	}
	queues = queues[:2]
	if groups, s = ask1(32 << 20); groups[0].Bytes != 0 || groups[1].Bytes != 0 || s.Left != 24<<20 {
		t.Errorf("two queues have %d and %d bytes, %d are left", groups[0].Bytes, groups[1].Bytes, s.Left)
	}
}
