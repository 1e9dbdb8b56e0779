package web

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/internal/wiretext"
	"github.com/qsidecar/qsidecar/protocol"
)

// maxGrouped is how many dead jobs one page reads and groups. The largest max of a peek.
const maxGrouped = 1000

// deadData is the data of the page of dead jobs.
type deadData struct {
	Queue  string // only this queue; empty: all
	Groups []*group
	Read   int64 // jobs that were read
	Dead   int64 // dead jobs in all, by the statistics
	Approx bool
	Stat   protocol.QueueStat // of Queue
	Asks   map[string]bool    // queues in which a retry of a group asks first
	Unread map[string]int64   // dead jobs of each queue that weren't read
	Open   *group             // the group whose jobs are shown
	Error  string
}

// group is a number of dead jobs of one queue that failed for the same reason.
type group struct {
	Queue, Cause, Reason string
	Key                  string // identifies Cause and Reason in addresses
	Count                int64
	First, Last          int64 // when the first and the last of them died
	Jobs                 []protocol.JobView
}

// dead groups dead jobs by queue and error.
func (p *Page) dead(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	d := &deadData{Queue: q.Get("queue")}
	f := p.frame(r, "dead", "Dead jobs", d)
	d.Stat, d.Asks, d.Unread = f.Snap.queue(d.Queue), map[string]bool{}, map[string]int64{}
	for i := range f.Snap.Queues {
		if s := &f.Snap.Queues[i]; d.Queue == "" || s.Queue == d.Queue {
			d.Dead += s.Dead
			d.Asks[s.Queue], d.Unread[s.Queue] = s.Dead > maxUnasked, s.Dead
			d.Approx = d.Approx || isEstimate(s.Approx, s.Dead)
		}
	}
	if !f.Live {
		rep, err := p.newestDead(r, d.Queue)
		if err != nil {
			d.Error = explain(err)
		} else {
			d.Read, d.Groups = int64(len(rep.Views)), groupJobs(rep.Views)
			for i := range rep.Views {
				d.Unread[rep.Views[i].Queue]--
			}
		}
		if i := slices.IndexFunc(d.Groups, func(g *group) bool { return g.Key == q.Get("group") && g.Queue == q.Get("of") }); i >= 0 {
			d.Open = d.Groups[i]
		}
	}
	p.show(w, http.StatusOK, f)
}

// newestDead reads the dead jobs that died last. In an adopted table, it reads the first ones in the order of claims.
func (p *Page) newestDead(r *http.Request, queue string) (*protocol.Reply, error) {
	return p.newest(r, &protocol.Request{Op: protocol.OpPeek, Queue: queue, State: protocol.StateDead, Max: protocol.Some[int64](maxGrouped)})
}

// groupJobs returns the groups of jobs. The group whose last job died last comes first.
func groupJobs(jobs []protocol.JobView) (all []*group) {
	type key struct{ queue, group string }
	known := make(map[key]*group)
	for i := range jobs {
		v := &jobs[i]
		cause, reason := failureOf(v)
		k := key{v.Queue, groupKey(cause, reason)}
		g := known[k]
		if g == nil {
			g = &group{Queue: v.Queue, Cause: cause, Reason: reason, Key: k.group}
			known[k] = g
			all = append(all, g)
		}
		g.add(v)
	}
	slices.SortStableFunc(all, func(a, b *group) int { return cmp.Or(cmp.Compare(b.Last, a.Last), cmp.Compare(b.Count, a.Count)) })
	return all
}

func (g *group) add(v *protocol.JobView) {
	if at := diedAt(v); at != 0 {
		if g.First == 0 || at < g.First {
			g.First = at
		}
		g.Last = max(g.Last, at)
	}
	g.Count++
	if len(g.Jobs) < jobsPerPage {
		g.Jobs = append(g.Jobs, *v)
	}
}

// diedAt returns when a job died; 0 if that is unknown.
func diedAt(v *protocol.JobView) int64 {
	if at := v.FinishedAt.Or(0); at != 0 || len(v.Errors) == 0 {
		return at
	}
	return v.Errors[len(v.Errors)-1].At
}

// failureOf returns the cause and the normalized message of a job's last failure.
func failureOf(v *protocol.JobView) (cause, reason string) {
	if len(v.Errors) == 0 {
		return "", "no error is stored"
	}
	last := v.Errors[len(v.Errors)-1]
	return last.Cause, normalize(last.Message)
}

// groupKey returns a short name of a group for addresses.
func groupKey(cause, reason string) string {
	sum := sha256.Sum256([]byte(cause + "\x00" + reason))
	return hex.EncodeToString(sum[:8])
}

// The parts of a message that differ between failures for the same reason.
var variable = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`(?i)\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b`), "‹id›"},
	{regexp.MustCompile(`"[^"\n]*"|'[^'\n]*'|` + "`[^`\n]*`"), "‹text›"},
	{regexp.MustCompile(`(?i)\b(?:0x)?[0-9a-f]*[0-9][0-9a-f]*\b|[0-9]+`), "‹n›"},
}

// reasonBytes is how much of a message counts.
const reasonBytes = 240

// normalize returns the first line of a message's summary without ids, numbers and quoted text.
func normalize(message string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(wiretext.Summary(message)), "\n")
	if len(line) > 4*reasonBytes {
		line = line[:4*reasonBytes]
	}
	line = visible(strings.ToValidUTF8(line, "\ufffd"))
	for _, v := range variable {
		line = v.pattern.ReplaceAllString(line, v.by)
	}
	if len(line) > reasonBytes {
		line = strings.ToValidUTF8(line[:reasonBytes], "") + "…"
	}
	return cmp.Or(line, "an empty error")
}
