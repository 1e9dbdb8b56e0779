package web

import (
	"fmt"
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

// TestSchedulesPages checks that the page goes on from schedule to schedule.
func TestSchedulesPages(t *testing.T) {
	s := newSite(t)
	for i := range schedulesPerPage + 1 {
		req := &protocol.Request{Op: protocol.OpSchedule, Queue: "q", Schedule: &protocol.Schedule{Name: fmt.Sprintf("s%03d", i), EveryMS: 3_600_000}}
		if _, err := s.client.Call(testwait.Context(t), req); err != nil {
			t.Fatal(err)
		}
	}
	first := s.get("/schedules", http.StatusOK)
	next := first.links("Next →")
	if len(first.rows()) != schedulesPerPage || len(next) != 1 || len(first.links("← First")) != 0 {
		t.Fatalf("the first page has %d rows, and the links %q", len(first.rows()), next)
	}
	last := s.get(next[0], http.StatusOK)
	if rows := last.rows(); len(rows) != 1 || !strings.HasPrefix(rows[0], "s100 ") || len(last.links("Next →")) != 0 || len(last.links("← First")) != 1 {
		t.Errorf("the last page has the rows %q", rows)
	}
	s.contains("a page behind the last schedule", s.get("/schedules?after=s100", http.StatusOK).text("main"), "There are no more schedules.")
}

// TestChangeSchedule runs, pauses and resumes a schedule by the page's forms.
func TestChangeSchedule(t *testing.T) {
	s := newSite(t)
	if _, err := s.client.Call(testwait.Context(t), &protocol.Request{Op: protocol.OpSchedule, Queue: "q", Schedule: &protocol.Schedule{Name: "tick", EveryMS: 3_600_000, Payload: []byte("tock")}}); err != nil {
		t.Fatal(err)
	}
	press := func(name string, status int) document {
		t.Helper()
		for form := range s.get("/schedules", http.StatusOK).all("form") {
			if strings.HasSuffix(attr(form, "action"), "/logout") {
				continue
			}
			fields := []string{}
			for n := range form.Descendants() {
				switch {
				case n.Data == "input":
					fields = append(fields, attr(n, "name"), attr(n, "value"))
				case n.Data == "button" && attr(n, "aria-label") == name:
					return s.post(status, strings.TrimPrefix(attr(form, "action"), "."), append(fields, attr(n, "name"), attr(n, "value"))...)
				}
			}
		}
		t.Fatalf("the page has no button %q", name)
		return document{}
	}
	s.contains("the page", press("Pause tick", http.StatusOK).text("main"), "Paused. The schedule stores no jobs.", "tick paused")
	s.contains("the page", press("Resume tick", http.StatusOK).text("main"), "Resumed.")
	s.contains("the page", press("Run now: tick", http.StatusOK).text("main"), "This is the new job.", "tock")
	if n := s.stat("q").Ready; n != 1 {
		t.Errorf("%d jobs are ready", n)
	}
	for _, do := range []string{"", "delete", "explode"} {
		s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "change_schedule", "queue", "q", "schedule", "tick", "do", do).text("main"), "Nothing was changed")
	}
	s.contains("the answer", s.post(http.StatusForbidden, "/do", "op", "change_schedule", "queue", "q", "schedule", "tick", "do", "run", "csrf_token", "another").text("main"), "another session")
	s.access.Store(false)
	s.contains("the answer", s.post(http.StatusForbidden, "/do", "op", "change_schedule", "queue", "q", "schedule", "tick", "do", "run").text("main"), "You can only look")
	for n := range s.get("/schedules", http.StatusOK).all("button") {
		if strings.Contains(attr(n, "aria-label"), "tick") {
			t.Error("a viewer has the button " + attr(n, "aria-label"))
		}
	}
	if n := s.stat("q").Ready; n != 1 {
		t.Errorf("%d jobs are ready", n)
	}
}
