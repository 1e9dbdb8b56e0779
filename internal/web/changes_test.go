package web

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// stat returns a queue's numbers as the sidecar reports them.
func (s *site) stat(queue string) protocol.QueueStat {
	s.Helper()
	all, err := s.client.Stats(testwait.Context(s), queue)
	if err != nil {
		s.Fatal(err)
	}
	return all[0]
}

// TestReadOnly checks that a viewer who can only read gets no form but the log-out, and that each change is refused.
func TestReadOnly(t *testing.T) {
	s := newSite(t)
	ids := s.enqueue("q", "1", "2")
	s.access.Store(false)
	for _, page := range []string{"/", "/queue?name=q", "/job?queue=q&id=" + ids[0], "/dead", "/config", "/confirm?op=purge&queue=q&state=ready"} {
		var posts []string
		for form := range s.get(page, http.StatusOK).all("form") {
			if attr(form, "method") == "post" {
				posts = append(posts, attr(form, "action"))
			}
		}
		if len(posts) != 1 || posts[0] != "./logout" {
			t.Errorf("%s has forms that post to %q, want the log-out", page, posts)
		}
	}
	for _, op := range []string{"pause", "resume", "limit", "retry", "delete", "reclaim", "purge", "enqueue", "reload"} {
		s.contains("the answer", s.post(http.StatusForbidden, "/do", "op", op, "queue", "q", "id", ids[0], "state", "ready", "confirm", "q").text("main"), "You can only look")
	}
	s.post(http.StatusForbidden, "/stop", "id", "1")
	if st := s.stat("q"); st.Ready != 2 || st.Paused {
		t.Errorf("the queue is %+v", st)
	}
}

// TestForeignForm checks that a form without the CSRF token changes nothing, and that a page doesn't lead elsewhere.
func TestForeignForm(t *testing.T) {
	s := newSite(t)
	s.enqueue("q", "1")
	for _, token := range []string{"", "another"} {
		s.contains("the answer", s.post(http.StatusForbidden, "/do", "op", "pause", "queue", "q", "csrf_token", token).text("main"), "another session")
	}
	if s.stat("q").Paused {
		t.Error("the queue is paused")
	}
	s.post(http.StatusRequestEntityTooLarge, "/do", "op", "pause", "queue", strings.Repeat("x", maxForm))
	for _, evil := range []string{"https://evil.example/", "//evil.example/", `/\evil.example/`, "/\t/evil.example"} {
		if d := s.post(http.StatusOK, "/do", "op", "resume", "queue", "q", "back", evil); d.url.Path != "/" {
			t.Errorf("back %q leads to %s", evil, d.url)
		}
	}
}

// TestChanges checks each operation on single jobs and queues.
func TestChanges(t *testing.T) {
	s := newSite(t)
	ids := s.enqueue("q", "one", "two")
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "pause", "queue", "q", "back", "/queue?name=q").text("main"), "Paused.")
	testwait.Until(t, "the pause on the page", func() bool {
		return strings.Contains(s.get("/queue?name=q", http.StatusOK).text("h1"), "paused")
	})
	s.post(http.StatusOK, "/do", "op", "resume", "queue", "q")
	if s.stat("q").Paused {
		t.Error("it is still paused")
	}
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "limit", "queue", "q", "max_claimed", "3", "rate", " 100/s", "burst", "", "back", "/queue?name=q").text("main"), "Limits changed.")
	if q := s.stat("q"); q.MaxClaimed.Or(0) != 3 || q.Rate != "100/s" {
		t.Errorf("the limits are %v and %q", q.MaxClaimed, q.Rate)
	}
	testwait.Until(t, "the limits on the page", func() bool {
		return strings.Contains(s.get("/queue?name=q", http.StatusOK).text("h1"), "max 3 claimed max 100/s")
	})
	s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "limit", "queue", "q", "rate", "fast").text("main"), "100/s, 30/m or 5/h")
	s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "limit", "queue", "q", "max_claimed", "three").text("main"), "not a whole number")
	s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "limit", "queue", "q", "burst", "3").text("main"), "burst belongs to a rate")
	s.post(http.StatusOK, "/do", "op", "limit", "queue", "q", "group_limit", "2", "group_ready", "3")
	if q := s.stat("q"); q.GroupLimit.Or(0) != 2 || q.GroupReady.Or(0) != 3 {
		t.Errorf("the limits of groups are %v and %v", q.GroupLimit, q.GroupReady)
	}
	s.post(http.StatusOK, "/do", "op", "limit", "queue", "q", "had_group_limit", "yes", "group_ready", "3")
	if q := s.stat("q"); q.GroupLimit.Set || q.GroupReady.Or(0) != 3 {
		t.Errorf("the limits of groups are %v and %v", q.GroupLimit, q.GroupReady)
	}
	s.post(http.StatusOK, "/do", "op", "limit", "queue", "q", "had_group_ready", "yes")
	if q := s.stat("q"); q.MaxClaimed.Set || q.Rate != "" {
		t.Errorf("the queue still has the limits %v and %q", q.MaxClaimed, q.Rate)
	}
	copied := s.post(http.StatusOK, "/do", "op", "enqueue", "queue", "q", "id", ids[0])
	s.contains("the copy", copied.text("main"), "This is the copy.", "one")
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "delete", "queue", "q", "id", ids[0], "back", "/queue?name=q").text("main"), "Deleted: 1 job.")
	jobs, err := s.client.Claim(testwait.Context(t), qsidecar.Claim{Queues: []string{"q"}, Max: 1})
	if err != nil {
		t.Fatal(err)
	}
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "reclaim", "queue", "q", "id", jobs[0].ID, "back", "/queue?name=q&state=claimed").text("main"), "Taken back from workers: 1 job.")
	s.kill("q", 2, func(int) string { return "broken" })
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "retry", "queue", "q", "id", jobs[0].ID).text("main"), "Ready again: 1 job.")
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "cancel", "queue", "q", "id", jobs[0].ID, "back", "/queue?name=q").text("main"), "Cancelled: 1 job.")
	s.contains("the page", s.get("/job?queue=q&id="+jobs[0].ID, http.StatusOK).text("main"), "cancelled by an operator")
	s.contains("the page", s.post(http.StatusOK, "/do", "op", "retry", "queue", "q", "id", jobs[0].ID).text("main"), "Ready again: 1 job.")
	s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "retry", "queue", "q").text("main"), "no job is selected")
	s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "claim", "queue", "q").text("main"), "the page has no operation")
	s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "pause").text("main"), "no queue is selected: choose at least one")
	s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "limit").text("main"), "no queue is selected: choose at least one")
	s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "enqueue", "queue", "q").text("main"), "choose one job to copy")
	s.contains("the answer", s.get("/job?queue=q", http.StatusBadRequest).text("main"), "the page's address needs a queue and an id, such as /job?queue=mail&id=17")
	s.contains("the answer", s.get("/queue?name=q&by=header&for=lang", http.StatusOK).text("main"), "search for a header as name=value, such as lang=en")
	s.contains("the answer", s.post(http.StatusUnprocessableEntity, "/do", "op", "reload").text("main"), "no config")
	if st := s.stat("q"); st.Ready != 1 || st.Dead != 1 {
		t.Errorf("the queue is %+v", st)
	}
}

// TestPurgeNeedsTheName checks that jobs are deleted together only after the queue's name was typed.
func TestPurgeNeedsTheName(t *testing.T) {
	s := newSite(t)
	s.enqueue("q", "1", "2", "3")
	s.contains("the page", s.get("/confirm?op=purge&queue=q&state=ready", http.StatusOK).text("main"), "Delete all ready jobs of queue q", "3 ready jobs now")
	for _, typed := range []string{"", "Q", "q "} {
		s.contains("the answer", s.post(http.StatusBadRequest, "/do", "op", "purge", "queue", "q", "state", "ready", "confirm", typed).text("main"), "Nothing was deleted")
	}
	s.post(http.StatusBadRequest, "/do", "op", "delete", "queue", "q", "all", "1")
	s.post(http.StatusBadRequest, "/do", "op", "purge", "queue", "q", "state", "claimed", "confirm", "q")
	if n := s.stat("q").Ready; n != 3 {
		t.Errorf("%d jobs are left, want 3", n)
	}
	d := s.post(http.StatusOK, "/do", "op", "purge", "queue", "q", "state", "ready", "confirm", "q")
	s.ends(d, "3 jobs")
	if n := s.stat("q").Ready; n != 0 {
		t.Errorf("%d jobs are left", n)
	}
}

// ends waits until the operation of a page has ended.
func (s *site) ends(d document, words ...string) {
	s.Helper()
	if d.url.Path != "/task" {
		s.Fatalf("the page is %s, want an operation's", d.url)
	}
	testwait.Until(s, "the end of the operation", func() bool {
		d = s.get(d.url.RequestURI(), http.StatusOK)
		return !strings.Contains(d.text("main"), "running")
	})
	s.contains("the operation", d.text("main"), append(words, "done")...)
}

// TestDeadGroups checks that dead jobs are grouped by what failed, and that a group is retried and deleted as a whole,
// including the jobs that the page doesn't show.
func TestDeadGroups(t *testing.T) {
	s := newSite(t)
	const n = 2500
	s.enqueue("q", make([]string, n)...)
	s.kill("q", n, func(i int) string {
		if i%5 == 0 {
			return fmt.Sprintf("no answer from 10.0.0.%d:5432 for \"order %d\"", i%7, i%11)
		}
		return fmt.Sprintf("user %d has no address", i%3)
	})
	s.enqueue("other", "1")
	s.kill("other", 1, func(int) string { return "user 7 has no address" })
	d := s.get("/dead?queue=q", http.StatusOK)
	s.contains("the groups", strings.Join(d.rows(), "\n"), "q user ‹n› has no address", "q no answer from ‹n›.‹n›.‹n›.‹n›:‹n› for ‹text›")
	s.contains("the groups", d.text("main"), "Groups of 1\u202f000 jobs of")
	if all := s.get("/dead", http.StatusOK).rows(); len(all) != 3 {
		t.Errorf("the groups of all queues are %q", all)
	}
	group := groupKey("nacked", normalize("user 1 has no address"))
	s.contains("the open group", s.get("/dead?of=q&group="+group, http.StatusOK).text("h2"), "user ‹n› has no address")

	s.contains("the question", s.post(http.StatusOK, "/do", "op", "retry", "queue", "q", "group", group).text("main"), "Retry the dead jobs of one group of queue q",
		"user ‹n› has no address", "jobs among the 1\u202f000 that died last", "The queue has 2\u202f500 dead jobs", "Retry the jobs")
	if st := s.stat("q"); st.Ready != 0 {
		t.Errorf("before the confirmation: %+v", st)
	}
	s.contains("the page of the queue", s.get("/queue?name=q", http.StatusOK).text("main"), "Retry all 2\u202f500…", "Delete all 2\u202f500…")
	s.contains("the question", s.get(d.links("Retry all 2 500…")[0], http.StatusOK).text("main"), "Retry all dead jobs of queue q", "2\u202f500 dead jobs now")
	s.ends(s.post(http.StatusOK, "/do", "op", "retry", "queue", "q", "group", group, "confirm", "q"), "2\u202f000 jobs")
	missing := groupKey("nacked", normalize(`no answer from 10.0.0.1:5432 for "order 1"`))
	s.contains("the question", s.get("/confirm?op=delete&queue=q&group="+missing, http.StatusOK).text("main"), "no answer from ‹n›.‹n›.‹n›.‹n›:‹n› for ‹text›", "500 jobs", "The jobs are gone afterwards")
	s.contains("the question", s.get("/confirm?op=delete&queue=q&group="+group, http.StatusOK).text("main"), "None of the 500 jobs that died last")
	if st := s.stat("q"); st.Ready != 2000 || st.Dead != 500 {
		t.Errorf("after the retry of a group: %+v", st)
	}
	s.ends(s.post(http.StatusOK, "/do", "op", "delete", "queue", "q", "group", groupKey("nacked", normalize(`no answer from 10.0.0.1:5432 for "order 1"`)), "confirm", "q"), "500 jobs")
	if st := s.stat("q"); st.Ready != 2000 || st.Dead != 0 || s.stat("other").Dead != 1 {
		t.Errorf("after the deletion of a group: %+v", st)
	}
	s.ends(s.post(http.StatusOK, "/do", "op", "retry", "queue", "other", "all", "1"), "1 job")
	s.contains("the operations", s.get("/tasks", http.StatusOK).text("table"), "Retry all dead jobs of queue other", "the test")
}

// TestRetryAroundATakenKey checks that one job that can't be retried doesn't keep the others dead.
func TestRetryAroundATakenKey(t *testing.T) {
	s := newSite(t)
	ctx := testwait.Context(t)
	for i := range 20 {
		if _, err := s.client.Enqueue(ctx, protocol.NewJob{Queue: "q", Key: fmt.Sprintf("k%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	s.kill("q", 20, func(int) string { return "broken" })
	views, err := s.client.Peek(ctx, qsidecar.Peek{Queue: "q", State: protocol.StateDead, Max: 20})
	if err != nil {
		t.Fatal(err)
	}
	calls := func(req *protocol.Request) error { // the sidecar rejects a request with the key of another job
		for _, id := range req.IDs {
			if id == views[7].ID {
				return protocol.BadField("ids", "another job has the key of job %s", id)
			}
		}
		return nil
	}
	s.refuse.Store(&calls)
	s.ends(s.post(http.StatusOK, "/do", "op", "retry", "queue", "q", "all", "1"), "19 jobs", "Could not be changed1", "another job has the key")
	if st := s.stat("q"); st.Ready != 19 || st.Dead != 1 {
		t.Errorf("the queue is %+v", st)
	}
}

// TestStopOperation checks that an operator can stop an operation, and that Close does.
func TestStopOperation(t *testing.T) {
	s := newSite(t)
	s.enqueue("q", make([]string, 2100)...)
	s.kill("q", 2100, func(int) string { return "broken" })
	arrived, goOn := make(chan struct{}), make(chan struct{})
	second := false
	calls := func(req *protocol.Request) error {
		if req.Op == protocol.OpRetry {
			if second {
				close(arrived)
				<-goOn
			}
			second = true
		}
		return nil
	}
	s.refuse.Store(&calls)
	d := s.post(http.StatusOK, "/do", "op", "retry", "queue", "q", "all", "1")
	testwait.Closed(t, "the second batch", arrived)
	s.contains("the operation", s.get(d.url.RequestURI(), http.StatusOK).text("main"), "running", "1\u202f000 jobs")
	s.post(http.StatusOK, "/stop", "id", d.url.Query().Get("id"))
	close(goOn)
	testwait.Until(t, "the end of the operation", func() bool {
		return strings.Contains(s.get(d.url.RequestURI(), http.StatusOK).text("main"), "an operator stopped it")
	})
	if n := s.stat("q").Dead; n == 0 {
		t.Error("all jobs were retried")
	}
}

// stream opens an event stream.
func (s *site) stream(status int) io.ReadCloser {
	s.Helper()
	resp, err := s.http.Get(s.url + "/events")
	if err != nil {
		s.Fatal(err)
	}
	if resp.StatusCode != status {
		s.Errorf("an event stream: status %d, want %d", resp.StatusCode, status)
	}
	return resp.Body
}

// TestEvents checks that a browser gets an event after a change, and that too many streams are refused.
func TestEvents(t *testing.T) {
	s := newSite(t)
	var streams []io.ReadCloser
	for range maxStreams {
		streams = append(streams, s.stream(http.StatusOK))
	}
	s.stream(http.StatusServiceUnavailable).Close()
	s.enqueue("mail", "1")
	events := bufio.NewScanner(streams[0])
	for {
		if !events.Scan() {
			t.Fatal(events.Err())
		}
		if events.Text() != "data: changed" {
			continue
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(liveHeader, "1")
		resp, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if rows := s.read(resp, http.StatusOK).rows(); strings.HasPrefix(rows[0], "mail 1 ") {
			break
		}
	}
	for _, body := range streams {
		body.Close()
	}
	testwait.Until(t, "the ends of the streams", func() bool { return len(s.page.streams) == 0 })
}
