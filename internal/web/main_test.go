package web

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"github.com/qsidecar/qsidecar/backends/sqlite"
	"github.com/qsidecar/qsidecar/bridge"
	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/adminapi"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/internal/webpath"
	"github.com/qsidecar/qsidecar/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a page in front of a real sidecar on SQLite.
type site struct {
	store *sqlite.Store
	*testing.T
	client *qsidecar.Client
	page   *Page
	url    string
	http   *http.Client
	access atomic.Bool // can change
	hidden atomic.Bool
	count  map[protocol.Op]*atomic.Int64                 // requests of the page
	refuse atomic.Pointer[func(*protocol.Request) error] // nil: no request of the page is refused
}

const testCSRF = "the-form-token"

// newSite starts a sidecar, which can have a config.
func newSite(t *testing.T, config ...bridge.Control) *site {
	t.Helper()
	dir, err := os.MkdirTemp(local.TempDir(), "qs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	store, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(dir, "q.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // the test has read all that it needs
	socket := filepath.Join(dir, "q.sock")
	b, err := bridge.New(bridge.Options{
		Databases: map[string]bridge.Database{"main": {Backend: store}},
		Queues:    map[string]bridge.Queue{"*": {MaxAttempts: 1, RetainDone: time.Hour, KeyTTL: time.Millisecond}},
		Sockets:   []bridge.Socket{{Path: socket}},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config {
		b.SetControl(c)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := testwait.Receive(t, "the end of the sidecar", done); err != nil {
			t.Error(err)
		}
	})
	testwait.Closed(t, "that the socket listens", b.Ready())
	s := &site{T: t, store: store, count: map[protocol.Op]*atomic.Int64{}}
	for _, op := range []protocol.Op{protocol.OpPeek, protocol.OpStats, protocol.OpStatus, protocol.OpConfig, protocol.OpCheck, protocol.OpRetry, protocol.OpDelete} {
		s.count[op] = new(atomic.Int64)
	}
	s.client, err = qsidecar.Dial(t.Context(), qsidecar.Options{Socket: socket, Worker: "the page", RequestTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.client.Close() })
	s.serve()
	return s
}

// serve serves the page.
func (s *site) serve() {
	s.access.Store(true)
	s.page = New(Options{
		Do: func(ctx context.Context, req *protocol.Request) (*protocol.Reply, error) {
			if n := s.count[req.Op]; n != nil {
				n.Add(1)
			}
			if refuse := s.refuse.Load(); refuse != nil {
				if err := (*refuse)(req); err != nil {
					return nil, err
				}
			}
			return s.client.Call(ctx, req)
		},
		Access: func(*http.Request) (bool, string, string) {
			if s.access.Load() {
				return true, testCSRF, "the test"
			}
			return false, testCSRF, "a reader" // with a cookie, which the log-out ends
		},
		StatusOf:     adminapi.StatusOf,
		HidePayloads: s.hidden.Load,
	})
	server := httptest.NewServer(s.page)
	s.url = server.URL
	s.http = &http.Client{Transport: &http.Transport{}}
	s.Cleanup(func() {
		s.page.Close()
		s.http.CloseIdleConnections()
		server.Close()
	})
}

// enqueue stores jobs in a queue.
func (s *site) enqueue(queue string, payloads ...string) (ids []string) {
	s.Helper()
	for part := range slices.Chunk(payloads, 1000) {
		jobs := make([]protocol.NewJob, len(part))
		for i, p := range part {
			jobs[i] = protocol.NewJob{Queue: queue, Payload: []byte(p)}
		}
		got, err := s.client.EnqueueMany(testwait.Context(s), jobs)
		if err != nil {
			s.Fatal(err)
		}
		for _, j := range got {
			ids = append(ids, j.ID)
		}
	}
	return ids
}

// kill lets ready jobs of a queue die with the errors that why returns.
func (s *site) kill(queue string, n int, why func(i int) string) {
	s.Helper()
	for i := 0; i < n; {
		jobs, err := s.client.Claim(testwait.Context(s), qsidecar.Claim{Queues: []string{queue}, Max: 1000, Wait: time.Minute})
		if err != nil {
			s.Fatal(err)
		}
		byError := map[string][]string{}
		for _, j := range jobs {
			byError[why(i)] = append(byError[why(i)], j.Lease)
			i++
		}
		for text, leases := range byError {
			if _, err := s.client.NackMany(testwait.Context(s), leases, qsidecar.Nack{Error: text, Dead: true}); err != nil {
				s.Fatal(err)
			}
		}
	}
}

// get returns a page, which must have the status.
func (s *site) get(path string, status int) document {
	s.Helper()
	resp, err := s.http.Get(s.url + path)
	if err != nil {
		s.Fatal(err)
	}
	return s.read(resp, status)
}

// post sends a form with the CSRF token and returns the page that follows.
func (s *site) post(status int, path string, form ...string) document {
	s.Helper()
	v := url.Values{"csrf_token": {testCSRF}}
	for i := 0; i < len(form); i += 2 {
		v.Set(form[i], form[i+1])
	}
	resp, err := s.http.PostForm(s.url+path, v)
	if err != nil {
		s.Fatal(err)
	}
	return s.read(resp, status)
}

// document is a page that a browser got.
type document struct {
	root   *html.Node
	source string
	url    *url.URL
}

func (s *site) read(resp *http.Response, status int) document {
	s.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	d := document{source: string(b), url: resp.Request.URL}
	if d.root, err = html.Parse(strings.NewReader(d.source)); err != nil {
		s.Fatal(err)
	}
	if resp.StatusCode != status {
		s.Fatalf("%s: status %d, want %d: %s", d.url, resp.StatusCode, status, d.text("main"))
	}
	checkDocument(s, d)
	return d
}

// checkDocument checks what each page must have: no inline script or style, relative links, a title, labels, and heads of tables.
func checkDocument(s *site, d document) {
	s.Helper()
	labels := map[string]bool{}
	for n := range d.all("label") {
		labels[attr(n, "for")] = true
	}
	root := webpath.Root(&http.Request{URL: d.url})
	for n := range d.root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "style" {
				s.Errorf("%s: <%s %s=%q> is inline", d.url, n.Data, a.Key, a.Val)
			}
			if slices.Contains([]string{"href", "src", "action"}, a.Key) && !strings.HasPrefix(a.Val, "#") && !strings.HasPrefix(a.Val, root+"/") {
				s.Errorf("%s: <%s %s=%q> leaves the prefix of a proxy", d.url, n.Data, a.Key, a.Val)
			}
		}
		switch n.Data {
		case "script":
			if attr(n, "src") == "" || n.FirstChild != nil {
				s.Errorf("%s has an inline script", d.url)
			}
		case "style":
			s.Errorf("%s has an inline style", d.url)
		case "th":
			if attr(n, "scope") == "" {
				s.Errorf("%s: a table's head %q has no scope", d.url, textOf(n))
			}
		case "input", "select":
			if attr(n, "type") != "hidden" && attr(n, "aria-label") == "" && !labels[attr(n, "id")] {
				s.Errorf("%s: the field %q has no label", d.url, attr(n, "name"))
			}
		}
	}
	if len(slices.Collect(d.all("h1"))) != 1 || d.text("title") == "" {
		s.Errorf("%s doesn't have one heading and a title", d.url)
	}
}

// all returns the elements of a name.
func (d document) all(name string) func(yield func(*html.Node) bool) {
	return func(yield func(*html.Node) bool) {
		for n := range d.root.Descendants() {
			if n.Type == html.ElementNode && n.Data == name && !yield(n) {
				return
			}
		}
	}
}

// text returns the text of all elements of a name.
func (d document) text(name string) string {
	var b strings.Builder
	for n := range d.all(name) {
		b.WriteString(textOf(n) + "\n")
	}
	return strings.TrimSpace(b.String())
}

// rows returns the rows of the page's tables as text.
func (d document) rows() (rows []string) {
	for n := range d.all("tbody") {
		for r := range n.ChildNodes() {
			var cells []string
			for c := range r.ChildNodes() {
				cells = append(cells, strings.Fields(textOf(c))...)
			}
			if r.Data == "tr" {
				rows = append(rows, strings.Join(cells, " "))
			}
		}
	}
	return rows
}

// links returns the addresses of the links with that text, without the dot that checkDocument checks.
func (d document) links(text string) (found []string) {
	for n := range d.all("a") {
		if strings.Join(strings.Fields(textOf(n)), " ") == text {
			found = append(found, strings.TrimPrefix(attr(n, "href"), "."))
		}
	}
	return found
}

func textOf(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return b.String()
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// contains fails the test unless a text contains each of words.
func (s *site) contains(what, text string, words ...string) {
	s.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			s.Errorf("%s doesn't have %q:\n%s", what, w, text)
		}
	}
}
