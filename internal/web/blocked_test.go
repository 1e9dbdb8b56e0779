package web

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestBlockedJobs checks that jobs that wait for their group are on each page, and that the page changes them.
func TestBlockedJobs(t *testing.T) {
	s := newSite(t)
	s.enqueue("other", "x")
	jobs := make([]protocol.NewJob, 3)
	for i := range jobs {
		jobs[i] = protocol.NewJob{Queue: "q", Group: "g", Payload: []byte("p")}
	}
	stored, err := s.client.EnqueueMany(testwait.Context(t), jobs)
	if err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "an admitted and two blocked jobs", func() bool {
		q := s.stat("q")
		return q.Ready == 1 && q.Blocked == 2
	})
	overview := func(query string) (d document) {
		testwait.Until(t, "the page has read the numbers", func() bool {
			d = s.get("/"+query, http.StatusOK)
			return len(d.links("2")) == 1
		})
		return d
	}
	d := overview("")
	s.contains("the totals", strings.Join(strings.Fields(d.text("section")), " "), "blocked2")
	if link := d.links("2"); link[0] != "/queue?name=q&state=blocked" {
		t.Errorf("the number leads to %s", link[0])
	}
	if rows := overview("?only=blocked").rows(); len(rows) == 0 || !strings.HasPrefix(rows[0], "q ") || slices.ContainsFunc(rows, func(r string) bool { return strings.HasPrefix(r, "other ") }) {
		t.Errorf("queues with blocked jobs: %q", rows)
	}
	if rows := overview("?sort=blocked").rows(); !strings.HasPrefix(rows[0], "q ") {
		t.Errorf("sorted: %q", rows)
	}
	list := s.get("/queue?name=q&state=blocked", http.StatusOK)
	if len(list.rows()) != 2 {
		t.Errorf("the blocked jobs: %q", list.rows())
	}
	buttons := func(d document) (all []string) {
		for b := range d.all("button") {
			all = append(all, attr(b, "value"))
		}
		return all
	}
	for _, d := range []document{list, s.get(address("/job", "queue", "q", "id", stored[1].ID), http.StatusOK)} {
		for _, op := range []string{"cancel", "delete", "change"} {
			if !slices.Contains(buttons(d), op) {
				t.Errorf("%s has no button to %s", d.url, op)
			}
		}
	}
	job := s.get(address("/job", "queue", "q", "id", stored[1].ID), http.StatusOK)
	s.contains("a blocked job", strings.Join(strings.Fields(job.text("dl")), " "), "Waits forjobs of its group: "+stored[0].ID+" (ready)")
	if len(job.links(stored[0].ID)) != 1 {
		t.Error("the page has no link to the job before")
	}
	s.post(http.StatusOK, "/do", "op", "pause", "queue", "q")
	s.contains("a ready job", s.get(address("/job", "queue", "q", "id", stored[0].ID), http.StatusOK).text("dl"), "the end of the queue's pause")
	s.post(http.StatusOK, "/do", "op", "resume", "queue", "q")
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "cancel", "queue", "q", "id", stored[2].ID, "back", "/queue?name=q").text("main"), "Cancelled: 1 job.")
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "change", "queue", "q", "id", stored[1].ID, "priority", "3", "back", "/queue?name=q").text("main"), "Changed: 1 job.")
}

// TestQueueOpensWithBlockedJobs checks that the page of a queue that has blocked jobs alone shows them.
func TestQueueOpensWithBlockedJobs(t *testing.T) {
	if got := needsAttention(protocol.QueueStat{Blocked: 1}); got != protocol.StateBlocked {
		t.Errorf("it shows %s jobs", got)
	}
}
