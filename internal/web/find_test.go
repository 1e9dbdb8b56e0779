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

// TestFind searches a queue by each criterion.
func TestFind(t *testing.T) {
	s := newSite(t)
	jobs := make([]protocol.NewJob, 60)
	for i := range jobs {
		jobs[i] = protocol.NewJob{Queue: "q", Payload: fmt.Appendf(nil, "payload %d", i), Key: fmt.Sprintf("key-%d", i), Headers: map[string]string{"parity": fmt.Sprint(i % 2)}}
	}
	stored, err := s.client.EnqueueMany(testwait.Context(t), jobs)
	if err != nil {
		t.Fatal(err)
	}
	find := func(by, text string) document {
		t.Helper()
		return s.get(address("/queue", "name", "q", "state", "ready", "by", by, "for", text), http.StatusOK)
	}
	d := find("text", "load 5")
	s.contains("a text", d.text("main"), "11 jobs found among 60 jobs.")
	if rows := d.rows(); len(rows) != 11 || !strings.Contains(rows[0], "key-5") || !strings.Contains(rows[1], "key-50") {
		t.Errorf("a text: %q", rows)
	}
	s.contains("a header", find("header", "parity=1").text("main"), "30 jobs found among 60 jobs.")
	s.contains("no header", find("header", "parity").text("main"), "name=value")
	s.contains("none", find("text", "<b>none").text("main"), "0 jobs found among 60 jobs.")
	for by, text := range map[string]string{"key": "key-7", "id": stored[7].ID} {
		d := find(by, text)
		if d.url.Path != "/job" {
			t.Errorf("by %s: %s", by, d.url)
		}
		s.contains("by "+by, d.text("main"), "payload 7")
	}
	s.contains("no key", find("key", "key").text("main"), "0 jobs found among 60 jobs.")
	s.contains("no id", find("id", "none").text("main"), "0 jobs found.")

	d = find("text", "payload")
	s.contains("the first page", d.text("main"), "50 jobs found among 50 jobs; there are more", "Search on")
	next := d.links("Search on →")[0]
	s.contains("the next page", s.get(next, http.StatusOK).text("main"), "10 jobs found among the next 10 jobs.")
}

// TestDeadShowsTheNewest checks that the page of dead jobs reads those that died last.
func TestDeadShowsTheNewest(t *testing.T) {
	s := newSite(t)
	s.enqueue("q", make([]string, maxGrouped+2)...)
	if jobs, err := s.client.Claim(testwait.Context(t), qsidecar.Claim{Queues: []string{"q"}, Max: 2}); err != nil {
		t.Fatal(err)
	} else if _, err := s.client.NackMany(testwait.Context(t), []string{jobs[0].Lease, jobs[1].Lease}, qsidecar.Nack{Error: "old", Dead: true}); err != nil {
		t.Fatal(err)
	}
	s.kill("q", maxGrouped, func(int) string { return "new" })
	rows := s.get("/dead", http.StatusOK).rows()
	if len(rows) != 1 || !strings.Contains(rows[0], "new") {
		t.Errorf("the groups are %q", rows)
	}
	jobs, err := s.client.Peek(testwait.Context(t), qsidecar.Peek{Queue: "q", State: protocol.StateDead, Newest: true, Max: 1})
	if err != nil || len(jobs) != 1 || jobs[0].Errors[0].Message != "new" {
		t.Errorf("the newest: %+v, %v", jobs, err)
	}
}

// TestChangeJob changes the priority and the time of a job by the form on its page.
func TestChangeJob(t *testing.T) {
	s := newSite(t)
	id := s.enqueue("q", "x")[0]
	job := address("/job", "queue", "q", "id", id)
	form := []string{"op", "change", "queue", "q", "id", id, "back", job}
	d := s.post(http.StatusOK, "/do", append(form, "priority", "7", "delay", "3600000")...)
	s.contains("the job", d.text("main"), "scheduled", "Priority7", "Changed: 1 job.", "Ready at")
	d = s.post(http.StatusOK, "/do", append(form, "priority", "0", "delay", "0")...)
	s.contains("the job", d.text("main"), "ready", "Priority0")
	s.contains("no number", s.post(http.StatusBadRequest, "/do", append(form, "priority", "much")...).text("main"), "not a whole number")
	s.contains("nothing", s.post(http.StatusBadRequest, "/do", form...).text("main"), "nothing to change: choose a job, and a priority or a time")
	s.access.Store(false)
	s.post(http.StatusForbidden, "/do", append(form, "priority", "7")...)
}
