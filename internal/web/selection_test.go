package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// choose sends a form with several rows selected and returns the page that follows.
func (s *site) choose(op, queue, field string, rows ...string) document {
	s.Helper()
	v := url.Values{"csrf_token": {testCSRF}, "op": {op}, "queue": {queue}, "back": {"/queue?name=" + queue}, field: rows}
	if queue == "" {
		v.Set("back", "/")
	}
	resp, err := s.http.PostForm(s.url+"/do", v)
	if err != nil {
		s.Fatal(err)
	}
	return s.read(resp, http.StatusOK)
}

// states returns the states of jobs.
func (s *site) states(queue string, ids ...string) (states []protocol.State) {
	s.Helper()
	for _, id := range ids {
		rep, err := s.client.Call(testwait.Context(s), &protocol.Request{Op: protocol.OpPeek, Queue: queue, IDs: []string{id}})
		if err != nil {
			s.Fatal(err)
		}
		if len(rep.Views) == 0 {
			states = append(states, "gone")
		} else {
			states = append(states, rep.Views[0].State)
		}
	}
	return states
}

// keep stores jobs and returns their ids.
func (s *site) keep(queue string, jobs ...protocol.NewJob) (ids []string) {
	s.Helper()
	for _, j := range jobs {
		j.Queue = queue
		rep, err := s.client.Call(testwait.Context(s), &protocol.Request{Op: protocol.OpEnqueue, Queue: queue, Job: j})
		if err != nil {
			s.Fatal(err)
		}
		ids = append(ids, rep.Enqueued.ID)
	}
	return ids
}

// TestSelectionNamesTheRest deletes, retries and changes jobs of which some are in another state by then. The page names
// each that it didn't change, and why.
func TestSelectionNamesTheRest(t *testing.T) {
	s := newSite(t)
	ids := s.keep("q", make([]protocol.NewJob, 5)...)
	jobs, err := s.client.Claim(testwait.Context(t), qsidecar.Claim{Queues: []string{"q"}, Max: 2})
	if err != nil || len(jobs) != 2 {
		t.Fatalf("claimed %v, %v", jobs, err)
	}
	if err := s.client.Nack(testwait.Context(t), jobs[1].Lease, qsidecar.Nack{Error: "no", Dead: true}); err != nil {
		t.Fatal(err)
	}
	claimed, dead, ready := jobs[0].ID, jobs[1].ID, ids[2:]
	d := s.choose("delete", "q", "id", claimed, ready[0], "999999")
	s.contains("the page after a deletion", d.text("main"), "Delete 3 selected jobs of queue q", "Changed1 job", "a worker has it: take it back first", "it does not exist any more")
	if got := d.links(claimed); !slices.Equal(got, []string{"/job?id=" + claimed + "&queue=q"}) {
		t.Errorf("the job that was not deleted has the links %q", got)
	}
	if got := s.states("q", claimed, ready[0]); !slices.Equal(got, []protocol.State{"claimed", "gone"}) {
		t.Errorf("after the deletion the jobs are %q", got)
	}
	d = s.choose("retry", "q", "id", dead, ready[1])
	s.contains("the page after a retry", d.text("main"), "Changed1 job", ready[1]+"it is ready now")
	if got := s.states("q", dead); got[0] != "ready" {
		t.Errorf("after the retry the job is %q", got)
	}
	if d = s.choose("reclaim", "q", "id", claimed); !strings.Contains(d.text("p"), "Taken back from workers: 1 job.") || d.url.Path != "/queue" {
		t.Errorf("a selection that changed as a whole leads to %s: %s", d.url, d.text("p"))
	}
	s.contains("the operations", s.get("/tasks", http.StatusOK).text("main"), "Delete 3 selected jobs of queue q", "Retry 2 selected jobs of queue q")
}

// TestSelectionWithATakenKey retries jobs of which one can't get its key back. The others are retried.
func TestSelectionWithATakenKey(t *testing.T) {
	s := newSite(t)
	ids := s.keep("q", protocol.NewJob{}, protocol.NewJob{Key: "order-1"}, protocol.NewJob{})
	s.kill("q", 3, func(int) string { return "no" })
	testwait.Until(t, "another job gets the key of the dead one", func() bool {
		return s.keep("q", protocol.NewJob{Key: "order-1"})[0] != ids[1]
	})
	d := s.choose("retry", "q", "id", ids...)
	s.contains("the page", d.text("main"), "Changed2 jobs", ids[1]+"another job has its key")
	if got := s.states("q", ids...); !slices.Equal(got, []protocol.State{"ready", "dead", "ready"}) {
		t.Errorf("the jobs are %q", got)
	}
}

// TestSelectQueues pauses and resumes several queues, and names one that it can't.
func TestSelectQueues(t *testing.T) {
	s := newSite(t)
	for _, q := range []string{"a", "b", "c"} {
		s.enqueue(q, "1")
	}
	paused := func() (names []string) {
		rep, err := s.client.Call(testwait.Context(t), &protocol.Request{Op: protocol.OpStats})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range rep.Queues {
			if q.Paused {
				names = append(names, q.Queue)
			}
		}
		return names
	}
	d := s.choose("pause", "", "name", "a", "c")
	s.contains("the page", d.text("p"), "2 queues.")
	if got := paused(); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("%q are paused", got)
	}
	d = s.choose("resume", "", "name", "a", "not a name")
	s.contains("the page", d.text("main"), "Resume 2 selected queues", "Changed1 queue", "not a name")
	if got := paused(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("%q are paused", got)
	}
}

// TestEveryListHasSelections checks that the lists whose rows can be changed have check boxes, and no others without the right.
func TestEveryListHasSelections(t *testing.T) {
	s := newSite(t)
	s.keep("q", protocol.NewJob{}, protocol.NewJob{DelayMS: protocol.Some[int64](86_400_000)})
	s.enqueue("p", "1")
	s.kill("p", 1, func(int) string { return "no" })
	group := s.get("/dead", http.StatusOK).links("no nacked")
	if len(group) == 0 {
		for n := range s.get("/dead", http.StatusOK).all("a") {
			if strings.Contains(attr(n, "href"), "group=") && strings.Contains(attr(n, "href"), "/dead") {
				group = append(group, strings.TrimSuffix(strings.TrimPrefix(attr(n, "href"), "."), "#group"))
			}
		}
	}
	boxes := func(path string) (n int) {
		for b := range s.get(path, http.StatusOK).all("input") {
			if attr(b, "type") == "checkbox" {
				n++
			}
		}
		return n
	}
	for path, want := range map[string]int{"/": 3, "/queue?name=q&state=ready": 2, "/queue?name=q&state=scheduled": 2, "/queue?name=p&state=dead": 2, group[0]: 2} {
		if got := boxes(path); got != want {
			t.Errorf("%s has %d check boxes, want %d", path, got, want)
		}
		s.access.Store(false)
		if got := boxes(path); got != 0 {
			t.Errorf("%s has %d check boxes for a reader", path, got)
		}
		s.access.Store(true)
	}
}
