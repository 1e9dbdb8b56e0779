package web

import (
	"net/http"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestSchedulesPage checks that the page lists schedules with their next times, and those that a clock moves.
func TestSchedulesPage(t *testing.T) {
	s := newSite(t)
	if rows := s.get("/schedules", http.StatusOK).rows(); len(rows) != 0 {
		t.Errorf("without schedules: %q", rows)
	}
	call := func(req *protocol.Request) {
		t.Helper()
		if _, err := s.client.Call(testwait.Context(t), req); err != nil {
			t.Fatal(err)
		}
	}
	call(&protocol.Request{Op: protocol.OpSchedule, Queue: "q", Schedule: &protocol.Schedule{Name: "night", Cron: "30 2 * * *", Zone: "Europe/Berlin", Source: "app"}})
	call(&protocol.Request{Op: protocol.OpSchedule, Queue: "q", Schedule: &protocol.Schedule{Name: "tick", EveryMS: 3_600_000}})
	call(&protocol.Request{Op: protocol.OpChangeSchedule, Queue: "q", Schedule: &protocol.Schedule{Name: "tick"}, Do: protocol.DoPause})
	rows := s.get("/schedules", http.StatusOK).rows()
	if len(rows) != 2 || !strings.Contains(rows[0], "night q 30 2 * * * Europe/Berlin clock changes") || !strings.Contains(rows[0], "app") ||
		!strings.Contains(rows[1], "tick paused q every 3600 s –") {
		t.Errorf("the rows are %q", rows)
	}
}
