package metrics

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/admin"
	"github.com/qsidecar/qsidecar/internal/testserver/debian"
)

// promtool returns the path of Debian's promtool, unpacked.
func promtool(t testing.TB) string {
	t.Helper()
	root, err := debian.Root(t.Context(), "prometheus-bookworm", "bookworm", "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "usr", "bin", "promtool")
}

// runPromtool runs promtool, which must report nothing.
func runPromtool(t testing.TB, stdin string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), promtool(t), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// counts reports whether a series is a counter.
func counts(e admin.Exposition, series string) bool {
	name, _, _ := strings.Cut(series, "{")
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if family, ok := strings.CutSuffix(name, suffix); ok && e.Kinds[family] == "histogram" {
			return true
		}
	}
	return e.Kinds[name] == "counter"
}

// scraper scrapes repeatedly and compares each result with the one before.
type scraper struct {
	t     testing.TB
	a     *admin.Listener
	stop  chan struct{}
	done  sync.WaitGroup
	asked int
	last  admin.Exposition
}

func scraping(t testing.TB, a *admin.Listener) *scraper {
	s := &scraper{t: t, a: a, stop: make(chan struct{})}
	s.done.Go(func() {
		for {
			s.scrape()
			select {
			case <-s.stop:
				s.scrape()
				return
			default:
				kit.Pace()
			}
		}
	})
	return s
}

func (s *scraper) scrape() {
	e := s.a.Scrape()
	for series, before := range s.last.Series {
		if !counts(s.last, series) {
			continue
		}
		now, ok := e.Series[series]
		if !ok {
			s.t.Errorf("the counter %s was %v, and is missing now", series, before)
		} else if now < before {
			s.t.Errorf("the counter %s was %v, and is %v", series, before, now)
		}
	}
	s.asked++
	s.last = e
}

// end returns the last result.
func (s *scraper) end() admin.Exposition {
	close(s.stop)
	s.done.Wait()
	return s.last
}

// page returns the rows that the metrics' page must have for an exposition.
func page(e admin.Exposition) (rows []string) {
	labels := map[string]map[string]bool{}
	for series := range e.Series {
		name, rest, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		family := name
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if f, ok := strings.CutSuffix(name, suffix); ok && e.Kinds[f] == "histogram" {
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
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", name, e.Kinds[name], strings.Join(slices.Sorted(maps.Keys(labels[name])), ", "),
				strings.ReplaceAll(e.Help[name], "|", "\\|")))
		}
	}
	return rows
}

var labelName = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)

// metricsPage documents every metric.
var metricsPage = kit.Path("docs/reference/metrics.md")

// runbooksPage has a section for each alert.
var runbooksPage = kit.Path("docs/operations/runbooks.md")

// onThePage compares an exposition with the table of the page.
func onThePage(e admin.Exposition, t testing.TB) {
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
	if want := page(e); !slices.Equal(have, want) {
		t.Errorf("the table of %s is not that of the metrics; it should be:\n%s", metricsPage, strings.Join(want, "\n"))
	}
}

// TestAlertRules: promtool takes the rules, and finds that they fire when they should; what they
// are about is on the page of the metrics.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	rules := kit.Path("deploy/monitoring/rules.yaml")
	runPromtool(t, "", "check", "rules", rules)
	runPromtool(t, "", "check", "config", kit.Path("deploy/monitoring/prometheus.yml"))
	runPromtool(t, "", "test", "rules", kit.Path("deploy/monitoring/rules_test.yaml"))
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
	runbooks, err := os.ReadFile(runbooksPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(string(runbooks), "\n## "+m[1]+"\n") {
			t.Errorf("%s has no section on the alert %s", runbooksPage, m[1])
		}
		if url := "docs/operations/runbooks.md#" + strings.ToLower(m[1]) + "\"\n"; !strings.Contains(string(text), url) {
			t.Errorf("the alert %s in %s has no runbook_url that ends in %q", m[1], rules, url)
		}
	}
}
