package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/internal/webpath"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// liveHeader marks the request of the script for the live parts of a page. Its answer leaves out the parts that need a
// request to the database.
const liveHeader = "X-Live"

// frame is what every page has, with the page's own data.
type frame struct {
	Page      string // name of the page's template without its extension
	Title     string
	Live      bool // only the live parts are needed
	CanChange bool
	CSRF      string
	Actor     string
	User      string // empty: the viewer has no name
	Here      string // the page's own address, for forms that return to it
	Root      string // see webpath.Root. Only pages below the root need it: others start links with a dot
	Version   string
	Hidden    bool // payloads are hidden
	Done      string
	Snap      snapshot
	Running   int // operations that run
	Data      any
}

// pages returns the templates by page. Each has its own "main". They are parsed when a page is shown first: it takes milliseconds,
// which each command would wait for otherwise.
var pages = sync.OnceValue(func() map[string]*template.Template {
	base := template.Must(template.New("layout.html").Funcs(templateFuncs).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	all := make(map[string]*template.Template)
	files, err := templateFiles.ReadDir("templates")
	if err != nil {
		panic(err) // the files are embedded
	}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".html")
		if name != "layout" && name != "parts" {
			all[name] = template.Must(template.Must(base.Clone()).ParseFS(templateFiles, "templates/"+f.Name()))
		}
	}
	return all
})

// frame returns the frame of a page. It waits a little for the first reading of the poller.
func (p *Page) frame(r *http.Request, page, title string, data any) *frame {
	f := &frame{Page: page, Title: title, Root: webpath.Root(r), Live: r.Header.Get(liveHeader) != "", Version: p.opts.Version,
		Here: r.URL.RequestURI(), Hidden: p.opts.HidePayloads(), Done: doneText(r.URL.Query()),
		Snap: p.poller.current(r.Context()), Running: p.tasks.running(), User: p.opts.User(r), Data: data}
	f.CanChange, f.CSRF, f.Actor = p.opts.Access(r)
	return f
}

// show writes a page. A template that fails is a bug, and its page is not sent.
func (p *Page) show(w http.ResponseWriter, code int, f *frame) {
	var out bytes.Buffer
	if err := pages()[f.Page].ExecuteTemplate(&out, "layout.html", f); err != nil {
		code = http.StatusInternalServerError
		out.Reset()
		fmt.Fprintf(&out, "<!doctype html><title>Error</title><h1>The page %s can't be shown</h1><p>%s", f.Page, template.HTMLEscapeString(err.Error()))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(out.Bytes()) // the browser can be gone
}

// fail shows an error as a page.
func (p *Page) fail(w http.ResponseWriter, r *http.Request, code int, text string) {
	p.show(w, code, p.frame(r, "error", http.StatusText(code), text))
}

// failed shows an error of the sidecar as a page.
func (p *Page) failed(w http.ResponseWriter, r *http.Request, what string, err error) {
	code := http.StatusBadGateway
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		code = p.opts.StatusOf(e.Code)
	}
	p.fail(w, r, code, what+": "+explain(err))
}

// assetVersion is a part of the assets' addresses, so that browsers can keep them until the next version.
var assetVersion = sync.OnceValue(func() string {
	sum := sha256.New()
	files, err := assetFiles.ReadDir("assets")
	if err != nil {
		panic(err) // the files are embedded
	}
	for _, f := range files {
		b, err := assetFiles.ReadFile("assets/" + f.Name())
		if err != nil {
			panic(err)
		}
		sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
})

// asset serves an embedded file.
func (p *Page) asset(w http.ResponseWriter, r *http.Request) {
	file := path.Base(r.PathValue("file"))
	if r.URL.Query().Get("v") == assetVersion() {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, assetFiles, "assets/"+file)
}

var templateFuncs = template.FuncMap{
	"asset":    func(file string) string { return "/assets/" + file + "?v=" + assetVersion() },
	"link":     func(page string, query ...any) string { return "." + address(page, query...) },
	"address":  address,
	"age":      wiretext.Age,
	"obstacle": func(o protocol.Obstacle) string { return wiretext.Obstacle(&o) },
	"stamp":    stamp,
	"progress": wiretext.Progress,
	"count":    count,
	"about":    about,
	"asks":     func(q protocol.QueueStat) bool { return q.Dead > maxUnasked },
	"inState":  func(q protocol.QueueStat, s protocol.State) string { return about(q.Approx, numberIn(q, s)) },
	"plural":   plural,
	"list":     func(v ...any) []any { return v },
	"delays":   func() []delay { return delays },
	"criteria": func() []string { return criteria },
	"states":   func() []protocol.State { return states },
	"numOf":    numberIn,
	"explain":  explain,
	"min1":     func(n int64) int64 { return max(n, 1) },
	"len64":    func(n int) int64 { return int64(n) },
	"add":      func(a, b int) int { return a + b },
	"visible":  visible,
	"broken":   broken,
	"lastError": func(v protocol.JobView) string {
		if len(v.Errors) == 0 {
			return ""
		}
		return shorten(wiretext.Summary(v.Errors[len(v.Errors)-1].Message))
	},
	"snippet":  snippet,
	"nextJobs": nextJobs,
}

// broken returns a name that a narrow column can break after its separators. A browser itself breaks only after a hyphen.
func broken(name string) template.HTML {
	var b strings.Builder
	for _, c := range name {
		b.WriteString(template.HTMLEscapeString(string(c)))
		if strings.ContainsRune("./:_", c) {
			b.WriteString("<wbr>")
		}
	}
	return template.HTML(b.String()) //nolint:gosec // each character is escaped
}

// states are the states of a job, in the order of the pages.
var states = []protocol.State{protocol.StateReady, protocol.StateBlocked, protocol.StateScheduled, protocol.StateClaimed, protocol.StateDead, protocol.StateDone}

// numberIn returns how many jobs of a queue are in a state.
func numberIn(q protocol.QueueStat, s protocol.State) int64 {
	switch s {
	case protocol.StateReady:
		return q.Ready
	case protocol.StateBlocked:
		return q.Blocked
	case protocol.StateScheduled:
		return q.Scheduled
	case protocol.StateClaimed:
		return q.Claimed
	case protocol.StateDead:
		return q.Dead
	}
	return q.Done
}

// address returns the address of a page with a query of names and values. Empty values are left out.
func address(page string, query ...any) string {
	v := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		if value := fmt.Sprint(query[i+1]); value != "" {
			v.Add(fmt.Sprint(query[i]), value)
		}
	}
	if len(v) == 0 {
		return page
	}
	return page + "?" + v.Encode()
}

// stamp returns an instant as a time element, which the script shows in the viewer's zone.
func stamp(ms int64) template.HTML {
	t := time.UnixMilli(ms).UTC()
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339Nano) + `">` + t.Format("2006-01-02 15:04:05 UTC") + `</time>`) //nolint:gosec // digits only
}

// snippetRunes is how much of a text a table shows.
const snippetRunes = 160

// shorten returns the beginning of a text on one line.
func shorten(s string) string {
	s = strings.Join(strings.Fields(visible(s)), " ")
	if r := []rune(s[:min(len(s), 4*snippetRunes)]); len(r) > snippetRunes {
		return string(r[:snippetRunes]) + "…"
	}
	return s
}

// snippet returns the beginning of a job's payload.
func snippet(v protocol.JobView, hidden bool) string {
	switch {
	case hidden:
		return "hidden"
	case v.LeftOut.Set:
		return plural(v.LeftOut.Value, "byte")
	case utf8.Valid(v.Payload) && isText(v.Payload):
		return shorten(string(v.Payload[:min(len(v.Payload), 8*snippetRunes)]))
	}
	return fmt.Sprintf("% x", v.Payload[:min(len(v.Payload), 32)]) + " (" + plural(int64(len(v.Payload)), "byte") + ")"
}

// nextJobs returns a link to the next page of jobs.
func nextJobs(d *queueData) string {
	query := []any{"name", d.Queue, "state", d.State}
	if d.Find != nil {
		query = append(query, "by", d.Find.By, "for", d.Find.For)
	}
	for _, id := range d.Next {
		query = append(query, "after", id)
	}
	return "." + address("/queue", query...)
}

// count returns a number with separators of thousands.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// isEstimate reports whether a number of a queue is an estimate: see approx in PROTOCOL.md.
func isEstimate(approx bool, n int64) bool { return approx && n > 10_000 }

// about returns a number of jobs of a queue, with a sign if it is an estimate.
func about(approx bool, n int64) string {
	if isEstimate(approx, n) {
		return "≈\u202f" + count(n)
	}
	return count(n)
}

// plural returns a number of things.
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return count(n) + " " + thing + "s"
}
