package web

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestSidecarsPage checks that the page lists this sidecar with its leases at the last heartbeat.
func TestSidecarsPage(t *testing.T) {
	s := newSite(t)
	s.enqueue("q", "1", "2")
	if _, err := s.client.Claim(testwait.Context(t), qsidecar.Claim{Queues: []string{"q"}, Max: 2}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the leases on the page", func() bool {
		rows := s.get("/sidecars", http.StatusOK).rows()
		return len(rows) == 1 && strings.Contains(rows[0], " this one alive ") && strings.Contains(rows[0], " ago 2 ")
	})
}

// TestManySidecars checks the pages of a large fleet, and that the troubled ones are named on each.
func TestManySidecars(t *testing.T) {
	all := make([]protocol.Sidecar, 1000)
	for i := range all {
		all[i] = protocol.Sidecar{Name: fmt.Sprintf("host-%d:1", i), State: protocol.SidecarAlive}
	}
	all[990].State = protocol.SidecarDead
	for page, want := range map[string][2]int{"": {1, 100}, "10": {10, 100}, "99": {10, 100}, "x": {1, 100}} {
		d := &sidecarsData{}
		d.fill(all, page)
		if d.Number != want[0] || len(d.Rows) != want[1] || d.Pages != 10 || len(d.Troubled) != 1 || d.Troubled[0].Name != "host-990:1" {
			t.Errorf("page %q is %d of %d with %d rows, troubled %v", page, d.Number, d.Pages, len(d.Rows), d.Troubled)
		}
	}
}
