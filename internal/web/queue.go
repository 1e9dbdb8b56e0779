package web

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/internal/webpath"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	jobsPerPage = 50

	// fallbacks is how many ids of the end of a page the link to the next page has. If the last job has gone, the page
	// continues after one before it.
	fallbacks = 5
)

// queueData is the data of a queue's page.
type queueData struct {
	Queue string
	State protocol.State
	Stat  protocol.QueueStat
	Hour  plots // the last hour of this sidecar
	Days  plots // the last 14 days of all sidecars
	Jobs  []protocol.JobView
	First bool     // the page starts with the first job
	Next  []string // ids to continue after; empty: this is the last page
	Find  *found   // nil: all jobs of the state are shown
	Error string
}

// queue shows a queue's jobs in one state.
func (p *Page) queue(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	d := &queueData{Queue: q.Get("name"), State: protocol.State(q.Get("state")), First: !q.Has("after")}
	if d.Queue == "" {
		p.fail(w, r, http.StatusNotFound, "No queue has an empty name.")
		return
	}
	f := p.frame(r, "queue", d.Queue, d)
	d.Stat = f.Snap.queue(d.Queue)
	if !slices.Contains(states, d.State) { // in the address, so that an update of the page shows the same jobs
		q.Set("state", string(needsAttention(d.Stat)))
		webpath.Redirect(w, r, "/queue?"+q.Encode())
		return
	}
	h := f.Snap.historyOf(d.Queue)
	if rep, err := p.do(r, &protocol.Request{Op: protocol.OpHistory, Queue: d.Queue}); err == nil && len(rep.History) == 1 { // without it, the page has the hour
		h = &rep.History[0]
	}
	d.Hour, d.Days = lastHour(h, time.Now()), lastDays(h, time.Now())
	if !f.Live {
		job, err := p.listJobs(r, d)
		if err != nil {
			d.Error = explain(err)
		} else if job != nil {
			webpath.Redirect(w, r, address("/job", "queue", job.Queue, "id", job.ID))
			return
		}
	}
	p.show(w, http.StatusOK, f)
}

// needsAttention returns the state of the jobs that an operator most likely looks for.
func needsAttention(q protocol.QueueStat) protocol.State {
	for _, s := range []protocol.State{protocol.StateDead, protocol.StateReady, protocol.StateClaimed, protocol.StateBlocked, protocol.StateScheduled, protocol.StateDone} {
		if numberIn(q, s) > 0 {
			return s
		}
	}
	return protocol.StateReady
}

// listJobs reads the jobs that a queue's page shows: those of a search, or all of the state. If the search finds the job
// with an id or a key, it returns that job.
func (p *Page) listJobs(r *http.Request, d *queueData) (*protocol.JobView, error) {
	q := r.URL.Query()
	text := q.Get("for")
	if text == "" {
		return nil, p.readJobs(r, d, q["after"])
	}
	d.Find = &found{By: q.Get("by"), For: text}
	if !slices.Contains(criteria, d.Find.By) {
		d.Find.By = criteria[0]
	}
	return p.find(r, d, q.Get("after"))
}

// readJobs reads a page of jobs, after the first of the jobs that still is in the state.
func (p *Page) readJobs(r *http.Request, d *queueData, after []string) error {
	if len(after) == 0 {
		after = []string{""}
	}
	var err error
	for _, id := range after[:min(len(after), fallbacks)] {
		var rep *protocol.Reply
		rep, err = p.newest(r, &protocol.Request{Op: protocol.OpPeek, Queue: d.Queue, State: d.State, Max: protocol.Some[int64](jobsPerPage + 1), After: id})
		if err == nil {
			d.Jobs = rep.Views
			d.page()
			return nil
		}
		var wire *protocol.Error
		if !errors.As(err, &wire) || wire.Code != protocol.CodeBadRequest || id == "" {
			return err
		}
	}
	return errors.New("the last jobs of the page before have another state now, so its next page is unknown: go to the first page")
}

// newest reads finished jobs with those first that finished last, and others in their order. In an adopted table all come in
// their order.
func (p *Page) newest(r *http.Request, req *protocol.Request) (*protocol.Reply, error) {
	req.Newest = req.State == protocol.StateDead || req.State == protocol.StateDone
	rep, err := p.do(r, req)
	if wire, ok := errors.AsType[*protocol.Error](err); ok && wire.Code == protocol.CodeUnsupported && req.Newest {
		req.Newest = false
		rep, err = p.do(r, req)
	}
	return rep, err
}

// page cuts the jobs to one page and sets where the next one starts. A reply can have fewer jobs than requested, because
// its bytes are limited too.
func (q *queueData) page() {
	if len(q.Jobs) == 0 || len(q.Jobs) <= jobsPerPage && numberOfBytes(q.Jobs) < fullReply {
		return
	}
	q.Jobs = q.Jobs[:min(len(q.Jobs), jobsPerPage)]
	for i := len(q.Jobs) - 1; i >= 0 && len(q.Next) < fallbacks; i-- {
		q.Next = append(q.Next, q.Jobs[i].ID)
	}
}

// fullReply is the size from which a reply possibly leaves out jobs: a quarter of the smallest limit for a reply.
const fullReply = 128 << 10

func numberOfBytes(jobs []protocol.JobView) (n int) {
	for i := range jobs {
		n += len(jobs[i].Payload) + len(jobs[i].Result) + int(jobs[i].LeftOut.Or(0))
	}
	return n
}

// search finds jobs by their ids.
func (p *Page) search(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	if id == "" {
		p.fail(w, r, http.StatusBadRequest, "Enter the id of a job.")
		return
	}
	rep, err := p.do(r, &protocol.Request{Op: protocol.OpPeek, IDs: []string{id}})
	if err != nil {
		p.failed(w, r, "The search failed", err)
		return
	}
	switch len(rep.Views) {
	case 0:
		p.fail(w, r, http.StatusNotFound, "No queue has a job with the id "+id+". Done jobs are deleted unless their queue keeps them.")
	case 1:
		webpath.Redirect(w, r, address("/job", "queue", rep.Views[0].Queue, "id", id))
	default:
		p.show(w, http.StatusOK, p.frame(r, "search", "Jobs with the id "+id, rep.Views))
	}
}
