package web

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestOverview checks the numbers of queues, the databases, the filter and the order.
func TestOverview(t *testing.T) {
	s := newSite(t)
	s.enqueue("mail", "1", "2", "3")
	s.enqueue("sms", "1")
	s.kill("sms", 1, func(int) string { return "no credit" })
	if err := s.client.Pause(testwait.Context(t), "mail"); err != nil {
		t.Fatal(err)
	}
	d := s.get("/", http.StatusOK)
	rows := d.rows()
	if len(rows) != 3 || !strings.HasPrefix(rows[0], "mail paused – 3 0 0 0 0 0 ") || !strings.HasPrefix(rows[1], "sms – 0 0 0 0 1 0 ") || !strings.HasPrefix(rows[2], "main healthy sqlite") {
		t.Errorf("the rows are %q", rows)
	}
	s.contains("the page", d.text("main"), "Queues2", "1 paused", "dead1")
	if rows := s.get("/?only=dead", http.StatusOK).rows(); !strings.HasPrefix(rows[0], "sms") || len(rows) != 2 {
		t.Errorf("with dead jobs: %q", rows)
	}
	if rows := s.get("/?q=MAI", http.StatusOK).rows(); !strings.HasPrefix(rows[0], "mail") || len(rows) != 2 {
		t.Errorf("the filter found %q", rows)
	}
	s.contains("the page", s.get("/?q=none", http.StatusOK).text("main"), "No queue matches")
	if rows := s.get("/?sort=dead", http.StatusOK).rows(); !strings.HasPrefix(rows[0], "sms") {
		t.Errorf("by dead jobs: %q", rows)
	}
}

// TestManyQueues checks that each page of 1,000 queues is small, and that no page costs the database anything.
func TestManyQueues(t *testing.T) {
	s := newSite(t)
	jobs := make([]protocol.NewJob, 1000)
	for i := range jobs {
		jobs[i] = protocol.NewJob{Queue: fmt.Sprintf("queue-%04d", i), Payload: []byte("x")}
	}
	if _, err := s.client.EnqueueMany(testwait.Context(t), jobs); err != nil {
		t.Fatal(err)
	}
	first := s.get("/", http.StatusOK)
	size := len(first.source)
	for _, file := range []string{"app.css", "app.js", "icon.svg"} {
		b, err := assetFiles.ReadFile("assets/" + file)
		if err != nil {
			t.Fatal(err)
		}
		size += len(b)
	}
	if size > 150<<10 {
		t.Errorf("the first page has %d bytes with its files, want at most 150 KiB", size)
	}
	seen := map[string]bool{}
	pages := 0
	for d := first; ; d = s.get(d.links("Next →")[0], http.StatusOK) {
		pages++
		for _, row := range d.rows() {
			name, _, _ := strings.Cut(row, " ")
			seen[name] = true
		}
		if len(d.links("Next →")) == 0 {
			break
		}
	}
	if len(seen) != 1001 || pages != 20 { // with the database
		t.Errorf("%d names on %d pages, want 1001 on 20", len(seen), pages)
	}
	if n := s.count[protocol.OpPeek].Load(); n != 0 {
		t.Errorf("the overview peeked %d times", n)
	}
}

// TestJobPagesDoNotSlip checks that the pages of a queue have each job once while other jobs leave it.
func TestJobPagesDoNotSlip(t *testing.T) {
	s := newSite(t)
	payloads := make([]string, 3*jobsPerPage)
	ids := s.enqueue("q", payloads...)
	d := s.get("/queue?name=q", http.StatusOK)
	jobs, err := s.client.Claim(testwait.Context(t), qsidecar.Claim{Queues: []string{"q"}, Max: 10}) // of the first page
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.client.Delete(testwait.Context(t), "q", ids[jobsPerPage-2:jobsPerPage]); n != 2 || err != nil { // its last ones
		t.Fatal(n, err)
	}
	var seen []string
	for {
		for _, row := range d.rows() {
			id, _, _ := strings.Cut(row, " ")
			seen = append(seen, id)
		}
		next := d.links("Next →")
		if len(next) == 0 {
			break
		}
		d = s.get(next[0], http.StatusOK)
	}
	unique := slices.Compact(slices.Sorted(slices.Values(seen)))
	slices.Sort(ids)
	if !slices.Equal(unique, ids) {
		t.Errorf("the pages have %d of %d jobs", len(unique), len(ids))
	}
	claimed := s.get("/queue?name=q&state=claimed", http.StatusOK)
	if len(claimed.rows()) != len(jobs) {
		t.Errorf("%d claimed jobs, want %d", len(claimed.rows()), len(jobs))
	}
	testwait.Until(t, "the leases on the page of the workers", func() bool {
		return strings.Contains(s.get("/workers", http.StatusOK).text("main"), "10 × q")
	})
	s.contains("the job", s.get("/job?queue=q&id="+jobs[0].ID, http.StatusOK).text("main"), "claimed by the page", "session ")
}

// TestHostilePayloads checks that text which looks like HTML and random bytes are shown as text.
func TestHostilePayloads(t *testing.T) {
	s := newSite(t)
	evil := `<script>alert(1)</script><img src=x onerror=alert(1)>"'` + "\u202e"
	random := string([]byte{0xff, 0xfe, 0, '<', 'b', '>', 0x80})
	ctx := testwait.Context(t)
	queue := "a/../b:c_d."
	var ids []string
	for _, payload := range []string{evil, random, `{"a":[1,{"b":"<b>"}]}`, strings.Repeat("[", 60000), ""} {
		j, err := s.client.Enqueue(ctx, protocol.NewJob{Queue: queue, Payload: []byte(payload), Headers: map[string]string{evil: evil}, Key: evil + fmt.Sprint(len(ids))})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, j.ID)
	}
	s.get("/", http.StatusOK)
	list := s.get(address("/queue", "name", queue), http.StatusOK)
	s.contains("the list", list.text("td"), "<script>alert(1)</script>", "ff fe 00 3c 62 3e 80 (7 bytes)")
	for i, words := range [][]string{{"<script>alert(1)</script>", `\u202e`, "text · "}, {"ff fe 00 3c 62 3e 80", "hex · 7 bytes"}, {"\n  \"a\": [\n", "json · "}, {"text · 60000 bytes"}, {"text · 0 bytes"}} {
		d := s.get(address("/job", "queue", queue, "id", ids[i]), http.StatusOK)
		s.contains("the job", d.text("main"), append(words, "onerror")...)
	}
	s.contains("as hex", s.get(address("/job", "queue", queue, "id", ids[0], "as", "hex"), http.StatusOK).text("pre"), "3c 73 63 72")
	s.kill(queue, len(ids), func(int) string { return evil })
	s.contains("the dead", s.get("/dead", http.StatusOK).text("table"), `<script>alert(‹n›)</script>`)
	s.contains("a search", s.get("/search?id="+ids[1], http.StatusOK).url.Path, "/job")
	s.contains("a search", s.get("/search?id=%3Cscript%3E", http.StatusNotFound).text("main"), "<script>")

	s.hidden.Store(true)
	for _, page := range []string{address("/queue", "name", queue, "state", "dead"), address("/job", "queue", queue, "id", ids[0])} {
		d := s.get(page, http.StatusOK)
		for n := range d.all("pre") {
			if strings.HasPrefix(attr(n, "class"), "content") {
				t.Errorf("%s shows a payload", page)
			}
		}
	}
	s.contains("a job", s.get(address("/job", "queue", queue, "id", ids[0]), http.StatusOK).text("main"), "Payloads are hidden")
	s.contains("a copy", s.post(http.StatusBadGateway, "/do", "op", "enqueue", "queue", queue, "id", ids[0]).text("main"), "payloads are hidden")
}

// TestJobTimeLine checks the page of a job that failed.
func TestJobTimeLine(t *testing.T) {
	s := newSite(t)
	ctx := testwait.Context(t)
	j, err := s.client.Enqueue(ctx, protocol.NewJob{Queue: "q", Payload: []byte("x"), MaxAttempts: protocol.Some[int64](3), Headers: map[string]string{"tenant": "blue"}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	for range 2 {
		jobs, err := s.client.Claim(ctx, qsidecar.Claim{Queues: []string{"q"}, Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.client.Nack(ctx, jobs[0].Lease, qsidecar.Nack{Error: "no answer\nfrom host 7", Delay: &now}); err != nil {
			t.Fatal(err)
		}
	}
	d := s.get("/job?queue=q&id="+j.ID, http.StatusOK)
	s.contains("the job", d.text("main"), "2 of 3", "attempt 1: nacked", "attempt 2: nacked", "no answer\nfrom host 7", "enqueued", "tenant", "blue")
	for n := range d.all("time") {
		if _, err := time.Parse(time.RFC3339Nano, attr(n, "datetime")); err != nil {
			t.Error(err)
		}
	}
	s.contains("a missing job", s.get("/job?queue=q&id=99999999", http.StatusNotFound).text("main"), "no job")
	missing := s.get("/nothing", http.StatusNotFound)
	s.contains("a missing page", missing.text("main"), "does not exist", "/metrics", "/healthz", "/api/v1/openapi.json")
	if strings.Contains(missing.source, "data-live") {
		t.Error("a page with an error asks for live parts, and gets the error each time")
	}
}

// TestAttention checks which jobs of a queue come first: dead ones, and of those the newest.
func TestAttention(t *testing.T) {
	s := newSite(t)
	s.contains("an empty queue", s.get("/queue?name=empty", http.StatusOK).url.RawQuery, "state=ready")
	var ids []string
	for i := range 3 {
		ids = append(ids, s.enqueue("q", "x")...)
		s.kill("q", 1, func(int) string { return fmt.Sprint("error ", []string{"one", "two", "three"}[i]) })
	}
	s.enqueue("q", "x") // it is ready
	testwait.Until(t, "the numbers of the page", func() bool {
		return strings.Contains(s.get("/queue?name=q&done=resume", http.StatusOK).url.RawQuery, "done=resume&name=q&state=dead")
	})
	d := s.get("/queue?name=q", http.StatusOK)
	for i, row := range d.rows() {
		if !strings.HasPrefix(row, ids[2-i]+" ") {
			t.Errorf("row %d of the dead jobs is %s, want job %s", i, row, ids[2-i])
		}
	}
	for i, row := range s.get("/dead", http.StatusOK).rows() {
		s.contains("a group", row, "error "+[]string{"three", "two", "one"}[i])
	}
}

// TestEstimates checks that only numbers that are estimates have the sign.
func TestEstimates(t *testing.T) {
	for _, c := range []struct {
		approx bool
		n      int64
		want   string
	}{{false, 20_000, "20\u202f000"}, {true, 10_000, "10\u202f000"}, {true, 0, "0"}, {true, 10_001, "≈\u202f10\u202f001"}} {
		if got := about(c.approx, c.n); got != c.want {
			t.Errorf("%v, %d is %s, want %s", c.approx, c.n, got, c.want)
		}
	}
	d := overviewData{Estimates: map[protocol.State]bool{}}
	d.add(&protocol.QueueStat{Ready: 9_000, Dead: 7, Approx: false})
	d.add(&protocol.QueueStat{Ready: 20_000, Dead: 7, Approx: true})
	if !d.Estimates[protocol.StateReady] || len(d.Estimates) != 1 {
		t.Errorf("estimates are %v", d.Estimates)
	}
}
