package tail

import (
	"cmp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

// column is a column of the table. It becomes wider with its values, up to most.
type column struct {
	name        string
	least, most int
}

// columns are those in front of the last one, DETAIL, which has the rest of the line. In a terminal they are narrow, so that the
// detail has at least 14 of 80 characters.
var (
	columns = []column{{"UTC", 12, 12}, {"QUEUE", 6, 24}, {"ID", 6, 36}, {"EVENT", 8, 8}, {"WORKER", 12, 20}, {"TRY", 5, 11}, {"AFTER", 5, 6}}
	narrow  = []column{{"UTC", 8, 8}, {"QUEUE", 10, 10}, {"ID", 6, 12}, {"EVENT", 8, 8}, {"WORKER", 10, 10}, {"TRY", 5, 5}, {"AFTER", 6, 6}}
)

// wideTerminal is the width from which a terminal has the columns of a file.
const wideTerminal = 140

const (
	// maxDetail is how many characters of the last column are shown where a line has any width.
	maxDetail = 300
	// minDetail is how many are shown in the narrowest terminal.
	minDetail = 10
)

type printer struct {
	Options
	widths [7]int
}

// head prints the head of the table.
func (p *printer) head() {
	if p.JSON {
		return
	}
	cells := make([]string, 0, len(columns)+1)
	for _, c := range columns {
		cells = append(cells, c.name)
	}
	_, _ = p.Out.Write(p.line(append(cells, "DETAIL"))) // the next write returns the error, too
}

// lines returns a line for each event.
func (p *printer) lines(events []protocol.JobEvent) (text []byte) {
	format := "15:04:05.000"
	if p.isNarrow() {
		format = time.TimeOnly
	}
	for i := range events {
		text = append(text, p.line(cells(&events[i], format))...)
	}
	return text
}

// width returns the width of the terminal; 0: there is none.
func (p *printer) width() int {
	if p.Width == nil {
		return 0
	}
	return p.Width()
}

func (p *printer) isNarrow() bool { return p.width() > 0 && p.width() < wideTerminal }

func (p *printer) line(cells []string) []byte {
	var b strings.Builder
	width, all, gap, detail := p.width(), columns, "  ", maxDetail
	if p.isNarrow() {
		all, gap = narrow, " "
	}
	for i, c := range all {
		text := textfmt.OneLine(cells[i], c.most)
		n := utf8.RuneCountInString(text)
		p.widths[i] = min(max(p.widths[i], c.least, n), c.most)
		b.WriteString(text + strings.Repeat(" ", p.widths[i]-n) + gap)
	}
	if width > 0 {
		detail = max(minDetail, width-utf8.RuneCountInString(b.String()))
	}
	if last := cells[len(columns)]; last != "" {
		b.WriteString(textfmt.OneLine(last, detail))
	}
	return []byte(strings.TrimRight(b.String(), " ") + "\n")
}

// cells returns the texts of an event.
func cells(e *protocol.JobEvent, timeFormat string) []string {
	attempt := "-"
	if e.Attempt > 0 {
		attempt = wiretext.Attempt(protocol.JobView{Attempt: e.Attempt, MaxAttempts: e.MaxAttempts})
	}
	since := e.ClaimedAt
	if e.Event == "claimed" {
		since = e.EnqueuedAt
	}
	after := "-"
	if at, ok := since.Get(); ok {
		after = wiretext.Age(max(e.At-at, 1))
	}
	return []string{time.UnixMilli(e.At).UTC().Format(timeFormat), cmp.Or(e.Queue, "-"), cmp.Or(e.ID, "-"), e.Event, cmp.Or(e.Worker, "-"), attempt, after, detail(e)}
}

// detail returns why an event happened.
func detail(e *protocol.JobEvent) string {
	var parts []string
	if e.Jobs > 0 {
		parts = append(parts, textfmt.Plural(e.Jobs, "job"))
	}
	if at, ok := e.RunAt.Get(); ok && at > e.At {
		parts = append(parts, "due in "+wiretext.Age(at-e.At))
	}
	if e.Cause != "" && (e.Cause != "nacked" || e.Error == "") { // a worker's error is enough
		parts = append(parts, e.Cause)
	}
	text := strings.Join(parts, ", ")
	if e.Error != "" {
		if text != "" {
			text += ": "
		}
		text += strings.Join(strings.Fields(wiretext.Summary(e.Error)), " ") // without tabs
	}
	return text
}
