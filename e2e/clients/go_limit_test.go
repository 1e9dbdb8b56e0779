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
	three, five, none := int64(3), int64(5), int64(0)
	for _, step := range []struct {
		set         qsidecar.Limits
		most, burst int64
		rate        string
	}{
		{qsidecar.Limits{MaxClaimed: &three, Rate: "100/s", Burst: &five}, 3, 5, "100/s"},
		{qsidecar.Limits{MaxClaimed: &none}, 0, 5, "100/s"},
		{qsidecar.Limits{None: true}, 0, 0, ""},
	} {
		if err := c.Limit(t.Context(), "q", step.set); err != nil {
			t.Fatal(err)
		}
		stats, err := c.Stats(t.Context(), "q")
		if err != nil || len(stats) != 1 {
			t.Fatal(stats, err)
		}
		if s := stats[0]; s.MaxClaimed.Or(0) != step.most || s.Rate != step.rate || s.Burst.Or(0) != step.burst {
			t.Errorf("after %+v the limits are %v, %q and %v", step.set, s.MaxClaimed, s.Rate, s.Burst)
		}
	}
	if err := c.Limit(t.Context(), "q", qsidecar.Limits{}); !qsidecar.IsCode(err, protocol.CodeBadRequest) {
		t.Errorf("no limit: %v, want bad_request", err)
	}
}
