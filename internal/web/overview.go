package web

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/webpath"
	"github.com/qsidecar/qsidecar/protocol"
)

// queuesPerPage keeps the first page far below 150 KB.
const queuesPerPage = 50

// overviewData is the data of the overview.
type overviewData struct {
	Filter, Only, Sort string
	Number, Pages      int // the page, from 1
	Found              int // queues that match the filter
	Rows               []queueRow
	Totals             protocol.QueueStat
	Estimates          map[protocol.State]bool // totals with a number that is an estimate
	Queues             int
	Paused             int
	Hour, Days         plots // of all queues
}

type queueRow struct {
	protocol.QueueStat
	Plots plots
}

// overview lists the queues and databases.
func (p *Page) overview(w http.ResponseWriter, r *http.Request) {
	f := p.frame(r, "overview", "Overview", nil)
	q := r.URL.Query()
	d := overviewData{Filter: q.Get("q"), Only: q.Get("only"), Sort: q.Get("sort"), Queues: len(f.Snap.Queues), Estimates: map[protocol.State]bool{}}
	for i := range f.Snap.Queues {
		d.add(&f.Snap.Queues[i])
	}
	now := time.Now()
	found := selectQueues(f.Snap.Queues, d.Filter, d.Only)
	sortQueues(found, d.Sort)
	d.Found = len(found)
	d.Pages = max(1, (len(found)+queuesPerPage-1)/queuesPerPage)
	d.Number, _ = strconv.Atoi(q.Get("page")) // 0 if it isn't a number
	d.Number = min(max(d.Number, 1), d.Pages)
	for _, s := range found[(d.Number-1)*queuesPerPage : min(d.Number*queuesPerPage, len(found))] {
		d.Rows = append(d.Rows, queueRow{s, lastHour(f.Snap.historyOf(s.Queue), now)})
	}
	d.Hour, d.Days = lastHour(f.Snap.historyOf(""), now), lastDays(f.Snap.historyOf(""), now)
	f.Data = &d
	p.show(w, http.StatusOK, f)
}

// add adds a queue to the totals.
func (o *overviewData) add(q *protocol.QueueStat) {
	o.Totals.Ready += q.Ready
	o.Totals.Blocked += q.Blocked
	o.Totals.Scheduled += q.Scheduled
	o.Totals.Claimed += q.Claimed
	o.Totals.Dead += q.Dead
	o.Totals.Done += q.Done
	for _, s := range states {
		if isEstimate(q.Approx, numberIn(*q, s)) {
			o.Estimates[s] = true
		}
	}
	o.Totals.OldestReadyMS = max(o.Totals.OldestReadyMS, q.OldestReadyMS)
	if q.Paused {
		o.Paused++
	}
}

// selectQueues returns a new list of the queues whose name contains filter, and that only selects.
func selectQueues(all []protocol.QueueStat, filter, only string) (found []protocol.QueueStat) {
	filter = strings.ToLower(filter)
	for _, q := range all {
		ok := true
		if only == "paused" {
			ok = q.Paused
		} else if slices.Contains(states, protocol.State(only)) {
			ok = numberIn(q, protocol.State(only)) > 0
		}
		if ok && strings.Contains(strings.ToLower(q.Queue), filter) {
			found = append(found, q)
		}
	}
	return found
}

// sortQueues sorts by a column, the largest first, or by the name.
func sortQueues(all []protocol.QueueStat, by string) {
	slices.SortFunc(all, func(a, b protocol.QueueStat) int {
		var n int
		if by == "oldest" {
			n = cmp.Compare(b.OldestReadyMS, a.OldestReadyMS)
		} else if slices.Contains(states, protocol.State(by)) {
			n = cmp.Compare(numberIn(b, protocol.State(by)), numberIn(a, protocol.State(by)))
		}
		return cmp.Or(n, cmp.Compare(a.Queue, b.Queue))
	})
}

// workers lists the sessions.
func (p *Page) workers(w http.ResponseWriter, r *http.Request) {
	p.show(w, http.StatusOK, p.frame(r, "workers", "Workers", nil))
}

// configData is the data of the page of the config.
type configData struct {
	protocol.Config
	Error string // why it can't be shown
}

// config shows the running config, its changes, and why a newer one was rejected.
func (p *Page) config(w http.ResponseWriter, r *http.Request) {
	d := &configData{}
	f := p.frame(r, "config", "Config", d)
	if !f.Live {
		if rep, err := p.do(r, &protocol.Request{Op: protocol.OpConfig}); err != nil {
			d.Error = explain(err)
		} else {
			d.Config = *rep.Config
		}
	}
	p.show(w, http.StatusOK, f)
}

// login shows the form for the token.
func (p *Page) login(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := &frame{Page: "login", Title: "Log in", Root: webpath.Root(r), Data: struct {
		Failed bool
		Next   string
	}{q.Get("failed") != "", webpath.Local(q.Get("next"))}}
	p.show(w, http.StatusOK, f)
}
