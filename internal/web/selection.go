package web

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/internal/webpath"
	"github.com/qsidecar/qsidecar/protocol"
)

// unchanged is a selected job, or queue, that an operation did not change.
type unchanged struct {
	ID  string
	Why string
}

// from lists the states of jobs that an operation changes.
var from = map[protocol.Op][]protocol.State{
	protocol.OpRetry:   {protocol.StateDead},
	protocol.OpReclaim: {protocol.StateClaimed},
	protocol.OpCancel:  {protocol.StateReady, protocol.StateBlocked, protocol.StateScheduled, protocol.StateClaimed},
	protocol.OpDelete:  {protocol.StateReady, protocol.StateBlocked, protocol.StateScheduled, protocol.StateDead, protocol.StateDone},
	protocol.OpChange:  {protocol.StateReady, protocol.StateBlocked, protocol.StateScheduled},
}

// onJobs reports whether the operation changes the jobs that the form names.
func (o *operation) onJobs() bool { return from[o.Op] != nil && !o.bulk() }

// changeJobs carries out an operation on the selected jobs. If it can't change some of them, it shows which and why.
func (p *Page) changeJobs(w http.ResponseWriter, r *http.Request, o *operation, req *protocol.Request) {
	left, known := p.unfit(r, o)
	rep, err := p.do(r, req)
	var count int64
	switch {
	case err == nil:
		count, left = rep.Count.Or(0), append(left, withoutKey(rep)...)
	case len(o.IDs) > 1 && ofOneJob(err): // the sidecar changes all of them or none
		if count, left, err = p.oneByOne(r, req, left); err != nil {
			p.failed(w, r, fmt.Sprintf("The operation %s ended after %s", o.Op, plural(count, "job")), err)
			return
		}
	default:
		p.failed(w, r, fmt.Sprintf("The operation %s failed", o.Op), err)
		return
	}
	p.poller.refresh()
	if n := int64(len(o.IDs)) - count; n > int64(len(left)) && known { // between the two requests
		left = append(left, unchanged{Why: plural(n-int64(len(left)), "other job") + " changed at the same time: look at them again"})
	}
	if len(left) > 0 && count < int64(len(o.IDs)) {
		p.showLeft(w, r, o, count, left)
		return
	}
	webpath.Redirect(w, r, after(o, &protocol.Reply{Count: protocol.Some(count)}))
}

// unfit returns the selected jobs that the operation doesn't change, because of their states. known is false if it could
// not find out.
func (p *Page) unfit(r *http.Request, o *operation) (left []unchanged, known bool) {
	rep, err := p.do(r, &protocol.Request{Op: protocol.OpPeek, Queue: o.Queue, IDs: o.IDs})
	if err != nil || numberOfBytes(rep.Views) >= fullReply { // it can lack some
		return nil, false
	}
	states := map[string]protocol.State{}
	for i := range rep.Views {
		states[rep.Views[i].ID] = rep.Views[i].State
	}
	for _, id := range o.IDs {
		switch state, exists := states[id]; {
		case !exists:
			left = append(left, unchanged{id, "it does not exist any more"})
		case slices.Contains(from[o.Op], state):
		case state == protocol.StateClaimed:
			left = append(left, unchanged{id, "a worker has it: take it back first"})
		default:
			left = append(left, unchanged{id, "it is " + string(state) + " now"})
		}
	}
	return left, true
}

// withoutKey returns the dead jobs that a retry left.
func withoutKey(rep *protocol.Reply) (left []unchanged) {
	for _, u := range rep.Unchanged {
		if u.State == protocol.StateDead {
			left = append(left, unchanged{u.ID, "another job has its key"})
		}
	}
	return left
}

// ofOneJob reports whether an error can be that of a single job.
func ofOneJob(err error) bool {
	wire, ok := errors.AsType[*protocol.Error](err)
	return ok && (wire.Code == protocol.CodeBadRequest || wire.Code == protocol.CodeInternal || wire.Code == protocol.CodeUnsupported)
}

// oneByOne carries out an operation on each job alone, except those that it doesn't change.
func (p *Page) oneByOne(r *http.Request, req *protocol.Request, left []unchanged) (count int64, _ []unchanged, err error) {
	for _, id := range req.IDs {
		if slices.ContainsFunc(left, func(u unchanged) bool { return u.ID == id }) {
			continue
		}
		one := *req
		one.IDs = []string{id}
		rep, err := p.do(r, &one)
		switch {
		case err == nil:
			count, left = count+rep.Count.Or(0), append(left, withoutKey(rep)...)
		case ofOneJob(err):
			left = append(left, unchanged{id, explain(err)})
		default:
			return count, left, err
		}
	}
	return count, left, nil
}

// changeQueues pauses or resumes the selected queues.
func (p *Page) changeQueues(w http.ResponseWriter, r *http.Request, o *operation) {
	var left []unchanged
	for _, queue := range o.Queues {
		if _, err := p.do(r, &protocol.Request{Op: o.Op, Queue: queue}); err != nil {
			left = append(left, unchanged{queue, explain(err)})
		}
	}
	p.poller.refresh()
	count := int64(len(o.Queues) - len(left))
	if len(left) > 0 {
		p.showLeft(w, r, o, count, left)
		return
	}
	webpath.Redirect(w, r, after(o, &protocol.Reply{Count: protocol.Some(count)}))
}

// showLeft shows what an operation did not change. The list of operations has it, too.
func (p *Page) showLeft(w http.ResponseWriter, r *http.Request, o *operation, count int64, left []unchanged) {
	_, _, actor := p.opts.Access(r)
	now := time.Now()
	t := p.tasks.add(&task{operation: *o, Actor: actor, Started: now, Left: left, stop: func(error) {}, progress: progress{Seen: int64(len(o.IDs) + len(o.Queues)), Changed: count, Ended: now}})
	webpath.Redirect(w, r, address("/task", "id", t.ID))
}
