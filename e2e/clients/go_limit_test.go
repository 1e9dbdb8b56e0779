package clients

import (
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestGoLimit checks that the Go client sets, keeps and removes the limits of a queue.
func TestGoLimit(t *testing.T) {
	t.Parallel()
	c, err := qsidecar.Dial(t.Context(), qsidecar.Options{Socket: kit.NewSite(t).Start("a").Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	two, three, five, none := int64(2), int64(3), int64(5), int64(0)
	for _, step := range []struct {
		set                         qsidecar.Limits
		most, burst, ofGroup, ready int64
		rate, onFailure             string
	}{
		{qsidecar.Limits{MaxClaimed: &three, Rate: "100/s", Burst: &five}, 3, 5, 0, 0, "100/s", ""},
		{qsidecar.Limits{MaxClaimed: &none}, 0, 5, 0, 0, "100/s", ""},
		{qsidecar.Limits{GroupLimit: &two, GroupOnFailure: protocol.GroupSkip, GroupReady: &three}, 0, 5, 2, 3, "100/s", "skip"},
		{qsidecar.Limits{None: true}, 0, 0, 0, 0, "", ""},
	} {
		if err := c.Limit(t.Context(), "q", step.set); err != nil {
			t.Fatal(err)
		}
		stats, err := c.Stats(t.Context(), "q")
		if err != nil || len(stats) != 1 {
			t.Fatal(stats, err)
		}
		if s := stats[0]; s.MaxClaimed.Or(0) != step.most || s.Rate != step.rate || s.Burst.Or(0) != step.burst ||
			s.GroupLimit.Or(0) != step.ofGroup || s.GroupReady.Or(0) != step.ready || s.GroupOnFailure != step.onFailure {
			t.Errorf("after %+v the limits are %v, %q, %v, %v, %v and %q", step.set, s.MaxClaimed, s.Rate, s.Burst, s.GroupLimit, s.GroupReady, s.GroupOnFailure)
		}
	}
	if err := c.Limit(t.Context(), "q", qsidecar.Limits{}); !qsidecar.IsCode(err, protocol.CodeBadRequest) {
		t.Errorf("no limit: %v, want bad_request", err)
	}
}
