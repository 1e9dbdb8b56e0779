package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// promtool is Debian's, unpacked.
func promtool(t testing.TB) string {
	t.Helper()
	root, err := testserver.DebianRoot(t.Context(), "prometheus-bookworm", "bookworm", "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "usr", "bin", "promtool")
}

// promtoolSays runs it and wants it to be content.
func promtoolSays(t testing.TB, stdin string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), promtool(t), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// admin is a sidecar's admin listener.
type admin struct {
	t    testing.TB
	http *http.Client
	base string
}

// adminAt is one at a Unix socket, or at a host and port.
func adminAt(t testing.TB, place string) *admin {
	tr := &http.Transport{}
	a := &admin{t: t, http: &http.Client{Transport: tr, Timeout: patience}, base: "http://" + place}
	if strings.Contains(place, "/") {
		a.base = "http://admin"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", place)
		}
	}
	t.Cleanup(tr.CloseIdleConnections)
	return a
}

// get is a page and its code; 0: nobody answered.
func (a *admin) get(path string) (code int, body string) {
	res, err := a.http.Get(a.base + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(text)
}

// scrape is an exposition.
func (a *admin) scrape() exposition {
	a.t.Helper()
	code, text := a.get("/metrics")
	if code != http.StatusOK {
		a.t.Errorf("/metrics: %d %s", code, text)
	}
	e, err := readExposition(text)
	if err != nil {
		a.t.Errorf("/metrics: %v", err)
	}
	return e
}

// exposition is what /metrics says.
type exposition struct {
	text   string
	series map[string]float64 // by name and labels, as they are written
	kinds  map[string]string  // by the name of a family: counter, gauge, …
	help   map[string]string
}

func readExposition(text string) (exposition, error) {
	e := exposition{text: text, series: map[string]float64{}, kinds: map[string]string{}, help: map[string]string{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			e.kinds[name] = kind
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			e.help[name] = help
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return e, fmt.Errorf("the line %q", line)
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return e, fmt.Errorf("the line %q: %w", line, err)
		}
		e.series[line[:at]] = v
	}
	return e, nil
}

// counts reports whether a series may only grow.
func (e exposition) counts(series string) bool {
	name, _, _ := strings.Cut(series, "{")
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if family, ok := strings.CutSuffix(name, suffix); ok && e.kinds[family] == "histogram" {
			return true
		}
	}
	return e.kinds[name] == "counter"
}

// of is the value of a queue's series in the database main; missing: it is an error.
func (e exposition) of(t testing.TB, name, queue string, more ...string) float64 {
	t.Helper()
	labels := append([]string{`database="main"`, `queue="` + queue + `"`}, more...)
	if len(more) > 0 && more[0] < labels[0] {
		labels = append(more, labels[:2]...)
	}
	key := "qsidecar_" + name + "{" + strings.Join(labels, ",") + "}"
	v, ok := e.series[key]
	if !ok {
		t.Errorf("there is no series %s", key)
	}
	return v
}

// scraper asks for metrics all the while, and holds each answer against the one before.
type scraper struct {
	t     testing.TB
	a     *admin
	stop  chan struct{}
	done  sync.WaitGroup
	asked int
	last  exposition
}

func scraping(t testing.TB, a *admin) *scraper {
	s := &scraper{t: t, a: a, stop: make(chan struct{})}
	s.done.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.look()
			case <-s.stop:
				s.look()
				return
			}
		}
	})
	return s
}

func (s *scraper) look() {
	e := s.a.scrape()
	for series, before := range s.last.series {
		if !s.last.counts(series) {
			continue
		}
		now, ok := e.series[series]
		if !ok {
			s.t.Errorf("the counter %s was %v, and is gone", series, before)
		} else if now < before {
			s.t.Errorf("the counter %s was %v, and is %v", series, before, now)
		}
	}
	s.asked++
	s.last = e
}

// end is the last of the answers.
func (s *scraper) end() exposition {
	close(s.stop)
	s.done.Wait()
	return s.last
}

// page are the rows of the metrics' page, as they should be for an exposition.
func (e exposition) page() (rows []string) {
	labels := map[string]map[string]bool{}
	for series := range e.series {
		name, rest, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		family := name
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if f, ok := strings.CutSuffix(name, suffix); ok && e.kinds[f] == "histogram" {
				family = f
			}
		}
		if labels[family] == nil {
			labels[family] = map[string]bool{}
		}
		for _, m := range labelName.FindAllStringSubmatch(rest, -1) {
			if m[1] != "le" {
				labels[family][m[1]] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(name, "qsidecar_") {
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", name, e.kinds[name], strings.Join(slices.Sorted(maps.Keys(labels[name])), ", "),
				strings.ReplaceAll(e.help[name], "|", "\\|")))
		}
	}
	return rows
}

var labelName = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)

// metricsPage documents every metric.
const metricsPage = "../deploy/monitoring/README.md"

// onThePage holds an exposition against the table of the page.
func (e exposition) onThePage(t testing.TB) {
	t.Helper()
	text, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `qsidecar_") {
			have = append(have, strings.TrimSpace(line))
		}
	}
	if want := e.page(); !slices.Equal(have, want) {
		t.Errorf("the table of %s is not that of the metrics; it should be:\n%s", metricsPage, strings.Join(want, "\n"))
	}
}

// TestAlertRules: promtool takes the rules, and finds that they fire when they should; what they
// are about is on the page of the metrics.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	const rules = "../deploy/monitoring/rules.yaml"
	promtoolSays(t, "", "check", "rules", rules)
	promtoolSays(t, "", "test", "rules", "../deploy/monitoring/rules_test.yaml")
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`qsidecar_[a-z_]+`).FindAllString(string(text), -1)
	for _, name := range names {
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("%s is about %s, which %s does not have", rules, name, metricsPage)
		}
	}
	if len(names) < 6 {
		t.Errorf("%d metrics found in %s", len(names), rules)
	}
}
