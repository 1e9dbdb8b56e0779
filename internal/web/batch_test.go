package web

import (
	"net/http"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestBatchPages checks that the pages show the progress of a batch, its jobs and its callback.
func TestBatchPages(t *testing.T) {
	s := newSite(t)
	s.contains("without batches", s.get("/batches", http.StatusOK).text("main"), "There is no batch.")
	call := func(req *protocol.Request) *protocol.Reply {
		t.Helper()
		rep, err := s.client.Call(testwait.Context(t), req)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	id := call(&protocol.Request{Op: protocol.OpOpenBatch, Queue: "reports", On: protocol.OnSuccess}).Batch.ID
	job := call(&protocol.Request{Op: protocol.OpEnqueue, Queue: "q", Job: protocol.NewJob{Queue: "q", Batch: id}}).Enqueued.ID
	rows := s.get("/batches", http.StatusOK).rows()
	if len(rows) != 1 || !strings.HasPrefix(rows[0], id+" open 0 0 1 on success in reports") {
		t.Errorf("the rows are %q", rows)
	}
	page := s.get("/batch?id="+id, http.StatusOK)
	s.contains("an open batch", page.text("main"), "open: 0 done, 0 failed, 1 left.", "when all jobs are done, after the batch is closed")
	if rows := page.rows(); len(rows) != 1 || rows[0] != job+" q ready" {
		t.Errorf("the jobs are %q", rows)
	}
	call(&protocol.Request{Op: protocol.OpDelete, Queue: "q", IDs: []string{job}})
	call(&protocol.Request{Op: protocol.OpCancelBatch, Queue: "reports", Batch: id})
	if rows := s.get("/batches", http.StatusOK).rows(); len(rows) != 0 {
		t.Errorf("a batch that has ended is among %q", rows)
	}
	if rows := s.get("/batches?all=1", http.StatusOK).rows(); len(rows) != 1 || !strings.HasPrefix(rows[0], id+" cancelled 0 1 0") {
		t.Errorf("all rows are %q", rows)
	}
	s.contains("a cancelled batch", s.get("/batch?id="+id, http.StatusOK).text("main"), "It has no callback.")
	s.contains("no batch", s.get("/batch?id=17", http.StatusNotFound).text("main"), "There is no batch 17")
}

// TestCancelBatch checks that a batch is cancelled only after a question.
func TestCancelBatch(t *testing.T) {
	s := newSite(t)
	call := func(req *protocol.Request) *protocol.Reply {
		t.Helper()
		rep, err := s.client.Call(testwait.Context(t), req)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	id := call(&protocol.Request{Op: protocol.OpOpenBatch, Queue: "reports", On: protocol.OnSuccess}).Batch.ID
	for range 2 {
		call(&protocol.Request{Op: protocol.OpEnqueue, Queue: "q", Job: protocol.NewJob{Queue: "q", Batch: id}})
	}
	button := func() []string { return s.get("/batch?id="+id, http.StatusOK).links("Cancel the batch…") }
	links := button()
	if len(links) != 1 {
		t.Fatalf("the buttons of an open batch: %q", links)
	}
	form := func(csrf, confirm string) []string {
		f := []string{"op", "cancel_batch", "queue", "reports", "batch", id, "confirm", confirm, "back", "/batch?id=" + id}
		if csrf != "" {
			f = append(f, "csrf_token", csrf)
		}
		return f
	}
	for _, d := range []document{s.get(links[0], http.StatusOK), s.post(http.StatusOK, "/do", form("", "")...)} {
		s.contains("the question", d.text("main"), "Cancel batch "+id, "2 unfinished jobs now", "without its callback")
	}
	s.post(http.StatusForbidden, "/do", form("another", id)...)
	s.access.Store(false)
	if links := button(); len(links) != 0 {
		t.Errorf("a viewer has the buttons %q", links)
	}
	s.contains("a viewer", s.get(links[0], http.StatusOK).text("main"), "You can only look")
	s.post(http.StatusForbidden, "/do", form("", id)...)
	if n := s.stat("q").Ready; n != 2 {
		t.Errorf("%d jobs are ready before the batch is cancelled", n)
	}
	s.access.Store(true)
	d := s.post(http.StatusOK, "/do", form("", id)...)
	s.contains("the page", d.text("main"), "The batch is cancelled. Jobs that this cancelled: 2.", "cancelled: 0 done, 2 failed, 0 left.")
	if links := button(); len(links) != 0 || s.stat("q").Ready != 0 {
		t.Errorf("after the cancel, the buttons %q, and %d jobs are ready", links, s.stat("q").Ready)
	}
	s.contains("no batch", s.get("/confirm?op=cancel_batch&batch=17", http.StatusNotFound).text("main"), "There is no batch 17")
}
