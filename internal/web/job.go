package web

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/protocol"
)

// shownBytes is how much of a payload a page shows.
const shownBytes = 64 << 10

// jobData is the data of a job's page.
type jobData struct {
	protocol.JobView
	Payload, Result *content // nil: there is none
	ProgressData    *content // nil: there is none
	Headers         []header
	Events          []event
	Session         string // the session that has the job, if known
	As              string // how bytes are shown: "", text or hex
}

type header struct{ Name, Value string }

// event is an entry of a job's time line.
type event struct {
	At         int64
	What, Text string
	Bad        bool
	Later      bool // in the future
}

// delay is a time from now that a form offers.
type delay struct {
	MS   int64
	Text string
}

var delays = []delay{{0, "at once"}, {60_000, "in a minute"}, {600_000, "in 10 minutes"}, {3_600_000, "in an hour"}, {86_400_000, "in a day"}, {604_800_000, "in a week"}}

// content is a payload or a result for people.
type content struct {
	Kind string // json, text or hex
	Text string
	Size int
	Cut  bool // Text doesn't have all of it
}

// job shows a job.
func (p *Page) job(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := p.frame(r, "job", "Job "+q.Get("id"), nil)
	d := &jobData{As: q.Get("as")}
	f.Data = d
	d.Queue, d.ID = q.Get("queue"), q.Get("id")
	if !f.Live {
		view, err := p.readJob(r, d.Queue, d.ID)
		if err != nil {
			p.failed(w, r, "The job can't be shown", err)
			return
		}
		d.fill(view, f)
	}
	p.show(w, http.StatusOK, f)
}

// readJob reads one job.
func (p *Page) readJob(r *http.Request, queue, id string) (*protocol.JobView, error) {
	if queue == "" || id == "" {
		return nil, protocol.Errorf(protocol.CodeBadRequest, "the page's address needs a queue and an id, such as /job?queue=mail&id=17")
	}
	rep, err := p.do(r, &protocol.Request{Op: protocol.OpPeek, Queue: queue, IDs: []string{id}})
	if err != nil {
		return nil, err
	}
	if len(rep.Views) == 0 {
		return nil, protocol.Errorf(protocol.CodeUnknownQueue, "queue %q has no job %s (any more): done jobs are deleted unless their queue keeps them", queue, id)
	}
	return &rep.Views[0], nil
}

func (j *jobData) fill(v *protocol.JobView, f *frame) {
	j.JobView = *v
	if !f.Hidden && !v.LeftOut.Set {
		j.Payload = newContent(v.Payload, j.As)
		if v.Result != nil {
			j.Result = newContent(v.Result, j.As)
		}
		if v.Progress != nil && len(v.Progress.Data) > 0 {
			j.ProgressData = newContent(v.Progress.Data, "")
		}
		for _, name := range slices.Sorted(maps.Keys(v.Headers)) {
			j.Headers = append(j.Headers, header{name, v.Headers[name]})
		}
	}
	j.Events = eventsOf(v)
	if f.Snap.Status != nil && v.State == protocol.StateClaimed {
		j.Session = holder(f.Snap.Status.Sessions, v)
	}
}

// holder returns the session that has a claimed job, as far as the status shows it: the only one of that worker with
// jobs of the queue, or the one whose oldest job it is. Empty: unknown.
func holder(sessions []protocol.SessionStatus, v *protocol.JobView) string {
	var likely []string
	for _, s := range sessions {
		for _, q := range s.Queues {
			if q.OldestJob == v.ID && cmp.Or(q.Queue, v.Queue) == v.Queue {
				return s.Session
			}
			if q.Queue == v.Queue && s.Worker == v.Worker {
				likely = append(likely, s.Session)
			}
		}
	}
	if len(likely) == 1 {
		return likely[0]
	}
	return ""
}

// eventsOf returns the time line of a job, the newest first.
func eventsOf(v *protocol.JobView) (all []event) {
	if v.EnqueuedAt != 0 {
		all = append(all, event{At: v.EnqueuedAt, What: "enqueued"})
	}
	for _, e := range v.Errors {
		all = append(all, event{At: e.At, What: fmt.Sprintf("attempt %d: %s", e.Attempt, e.Cause), Text: visible(e.Message), Bad: true})
	}
	if at, ok := v.ClaimedAt.Get(); ok && v.State == protocol.StateClaimed {
		all = append(all, event{At: at, What: fmt.Sprintf("attempt %d: claimed by %s", v.Attempt, cmp.Or(visible(v.Worker), "a worker without a name"))})
	}
	if at, ok := v.RunAt.Get(); ok && v.State == protocol.StateScheduled {
		all = append(all, event{At: at, What: "ready", Later: true})
	}
	if at, ok := v.FinishedAt.Get(); ok {
		all = append(all, event{At: at, What: string(v.State), Bad: v.State == protocol.StateDead})
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.At, b.At) })
	slices.Reverse(all)
	return all
}

// newContent returns bytes for people: as JSON, text or a hex dump, whichever fits first, or in the format of as.
func newContent(b []byte, as string) *content {
	c := &content{Size: len(b)}
	whole := b
	if c.Cut = len(b) > shownBytes; c.Cut {
		b = b[:shownBytes]
		for i := 0; i < utf8.UTFMax && len(b) > 0 && !utf8.Valid(b) && utf8.Valid(whole); i++ {
			b = b[:len(b)-1]
		}
	}
	var indented bytes.Buffer
	switch {
	case as == "" && !c.Cut && utf8.Valid(b) && depth(b) <= maxDepth && json.Indent(&indented, b, "", "  ") == nil:
		c.Kind, c.Text = "json", visible(indented.String())
	case as != "hex" && utf8.Valid(b) && (as == "text" || isText(b)):
		c.Kind, c.Text = "text", visible(string(b))
	default:
		c.Kind, c.Text = "hex", hex.Dump(b[:min(len(b), shownBytes/4)])
		c.Cut = c.Cut || len(b) > shownBytes/4
	}
	return c
}

// maxDepth is how deeply JSON can be nested to be indented. The indentation grows with the square of the depth.
const maxDepth = 64

// depth returns how deeply the brackets of a text are nested.
func depth(b []byte) (most int) {
	now, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			now++
			most = max(most, now)
		case c == ']' || c == '}':
			now--
		}
	}
	return most
}

// isText reports whether UTF-8 has no control characters but white space.
func isText(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) })
}

// visible replaces invisible characters, which can make a text look like another one.
func visible(s string) string {
	if !strings.ContainsFunc(s, invisible) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if invisible(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// invisible reports whether r is a control character or changes the direction of text.
func invisible(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}
