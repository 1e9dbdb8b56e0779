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

// columns are those of the table, with their smallest and largest widths. A column becomes wider with its values. The last one,
// DETAIL, has no width.
var columns = []struct {
	name        string
	least, most int
}{{"TIME (UTC)", 12, 12}, {"QUEUE", 6, 24}, {"ID", 4, 24}, {"EVENT", 8, 8}, {"WORKER", 12, 20}, {"ATTEMPT", 7, 11}, {"AFTER", 5, 6}}

// maxDetail is how many bytes of an error are shown.
const maxDetail = 300

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
	for i, c := range columns {
		p.widths[i] = c.least
		cells = append(cells, c.name)
	}
	_, _ = p.Out.Write(p.line(append(cells, "DETAIL"))) // the next write returns the error, too
}

// lines returns a line for each event.
func (p *printer) lines(events []protocol.JobEvent) (text []byte) {
	for i := range events {
		text = append(text, p.line(cells(&events[i]))...)
	}
	return text
}

func (p *printer) line(cells []string) []byte {
	var b strings.Builder
	for i, c := range columns {
		text := textfmt.OneLine(cells[i], c.most)
		n := utf8.RuneCountInString(text)
		p.widths[i] = max(p.widths[i], n)
		b.WriteString(text + strings.Repeat(" ", p.widths[i]-n+2))
	}
	return []byte(strings.TrimRight(b.String()+cells[len(columns)], " ") + "\n")
}

// cells returns the texts of an event.
func cells(e *protocol.JobEvent) []string {
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
	return []string{time.UnixMilli(e.At).UTC().Format("15:04:05.000"), cmp.Or(e.Queue, "-"), cmp.Or(e.ID, "-"), e.Event, cmp.Or(e.Worker, "-"), attempt, after, detail(e)}
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
	if e.Cause != "" {
		parts = append(parts, e.Cause)
	}
	text := strings.Join(parts, ", ")
	if e.Error != "" {
		if text != "" {
			text += ": "
		}
		text += textfmt.OneLine(e.Error, maxDetail)
	}
	return text
}
