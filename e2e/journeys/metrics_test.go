package journeys

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestMetrics checks that the metrics count the operations, and that the admin listener reports the
// sidecar as ready.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	at := filepath.Join(s.Dir, "admin.sock")
	s.Extra = "admin: {listen: " + at + "}\n"
	c := s.Start("a").Dial()
	c.Put("mail", "1", "2", "3")
	c.Must(kit.Msg{"op": "ack", "lease": c.ClaimOne("mail").Lease})
	c.Must(kit.Msg{"op": "nack", "lease": c.ClaimOne("mail").Lease, "dead": true})
	listener := admin.At(t, at)
	for name, want := range map[string]float64{"enqueued": 3, "claimed": 2, "acked": 1, "nacked": 1, "dead": 1} {
		testwait.Until(t, name+" jobs are counted", func() bool {
			return listener.Scrape().Of(t, "jobs_"+name+"_total", "mail") == want
		})
	}
	if code, body := listener.Get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
}
