package testrules

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The parts of a Markdown page that TestLinks reads.
var (
	codeBlock  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	linkText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	elsewhere  = regexp.MustCompile(`^(?:https?:|mailto:)`)
)

// TestLinks checks that each link of a page to a file of the repository, and to a heading of a
// page, has a target.
func TestLinks(t *testing.T) {
	root := filepath.Join("..", "..")
	cmd := exec.Command("git", "ls-files", "*.md", ":!docs/site")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for page := range strings.FieldsSeq(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Error(err)
			continue
		}
		prose := codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(string(text), ""), "")
		for _, m := range linkTarget.FindAllStringSubmatch(prose, -1) {
			if elsewhere.MatchString(m[1]) {
				continue
			}
			links++
			if problem := brokenLink(root, page, m[1]); problem != "" {
				t.Errorf("%s links to %s: %s", page, m[1], problem)
			}
		}
	}
	if links < 300 {
		t.Errorf("%d links found", links)
	}
}

// brokenLink returns what a link of a page lacks, or "".
func brokenLink(root, page, link string) string {
	target, anchor, hasAnchor := strings.Cut(link, "#")
	file := page
	if target != "" {
		file = path.Join(path.Dir(page), target)
	}
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		return err.Error()
	}
	if !hasAnchor || !strings.HasSuffix(file, ".md") {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return err.Error()
	}
	if !anchors(string(text))[anchor] {
		return "there is no such heading"
	}
	return ""
}

// anchors returns the anchors of a page's headings, as the forge and the site write them.
func anchors(page string) map[string]bool {
	found, count := map[string]bool{}, map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, ""), -1) {
		text := strings.NewReplacer("`", "", "*", "").Replace(linkText.ReplaceAllString(m[1], "$1"))
		slug := strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(text)), ""), " ", "-")
		if n := count[slug]; n > 0 {
			found[slug+"-"+strconv.Itoa(n)] = true
		} else {
			found[slug] = true
		}
		count[slug]++
	}
	return found
}

// TestAnchors checks the anchors of headings.
func TestAnchors(t *testing.T) {
	got := anchors("# A *b* `c_d`: e\n\n```sh\n# no\n```\n## [F](g), h-i\n## F h-i\n## F h-i\n")
	for _, want := range []string{"a-b-c_d-e", "f-h-i", "f-h-i-1", "f-h-i-2"} {
		if !got[want] {
			t.Errorf("%q is missing in %v", want, got)
		}
	}
	if got["no"] {
		t.Error("a line of a code block became a heading")
	}
}
