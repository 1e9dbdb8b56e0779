package web

import (
	"cmp"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/internal/webpath"
	"github.com/qsidecar/qsidecar/protocol"
)

// maxForm bounds the body of a form: a page of job ids, and a queue's name.
const maxForm = 64 << 10

// operation is a change as a form describes it.
type operation struct {
	Op     protocol.Op
	Queue  string
	State  protocol.State // purge
	IDs    []string
	Queues []string // pause and resume: several
	All    bool     // retry or delete every dead job
	Group  string   // retry or delete the dead jobs of this group
	Back   string   // the page to return to

	Priority string // change; empty: as before
	Delay    string // change: milliseconds from now; empty: the time stays

	MaxClaimed, Rate, Burst string // limit: empty: none

	GroupLimit, GroupReady       string // limit: empty: none, or as before if the queue had none
	HadGroupLimit, HadGroupReady bool   // the queue has one
	Schedule, Do                 string // change_schedule

	Batch string // cancel_batch
}

// readOperation returns the operation of a form or an address.
func readOperation(v url.Values) operation {
	return operation{Op: protocol.Op(v.Get("op")), Queue: v.Get("queue"), State: protocol.State(v.Get("state")),
		IDs: v["id"], Queues: v["name"], All: v.Get("all") != "", Group: v.Get("group"), Back: webpath.Local(v.Get("back")),
		Priority: v.Get("priority"), Delay: v.Get("delay"),
		MaxClaimed: v.Get("max_claimed"), Rate: strings.TrimSpace(v.Get("rate")), Burst: v.Get("burst"),
		GroupLimit: v.Get("group_limit"), GroupReady: v.Get("group_ready"), HadGroupLimit: v.Get("had_group_limit") != "", HadGroupReady: v.Get("had_group_ready") != "",
		Schedule: v.Get("schedule"), Do: v.Get("do"), Batch: v.Get("batch")}
}

// bulk reports whether the operation changes jobs that the form doesn't name.
func (o *operation) bulk() bool { return o.All || o.Group != "" }

// maxUnasked is how many dead jobs can be retried without a confirmation.
const maxUnasked = 1000

// removes reports whether it removes jobs that the form doesn't name.
func (o *operation) removes() bool {
	return o.Op == protocol.OpPurge || o.Op == protocol.OpDelete && o.bulk()
}

// needsConfirmation reports whether it removes jobs that the form doesn't name, or retries that many.
func (o *operation) needsConfirmation(stat protocol.QueueStat) bool {
	return o.removes() || o.Op == protocol.OpRetry && o.bulk() && stat.Dead > maxUnasked
}

// What describes the operation.
func (o *operation) What() string {
	switch {
	case o.Op == protocol.OpCancelBatch:
		return "Cancel batch " + o.Batch
	case o.Op == protocol.OpPurge:
		return fmt.Sprintf("Delete all %s jobs of queue %s", o.State, o.Queue)
	case o.Group != "":
		return fmt.Sprintf("%s the dead jobs of one group of queue %s", verb(o.Op), o.Queue)
	case len(o.Queues) > 0:
		return fmt.Sprintf("%s %s", verb(o.Op), plural(int64(len(o.Queues)), "selected queue"))
	case len(o.IDs) > 0:
		return fmt.Sprintf("%s %s of queue %s", verb(o.Op), plural(int64(len(o.IDs)), "selected job"), o.Queue)
	case o.All:
		return fmt.Sprintf("%s all dead jobs of queue %s", verb(o.Op), o.Queue)
	}
	return fmt.Sprintf("%s of queue %s", verb(o.Op), o.Queue)
}

func verb(op protocol.Op) string {
	switch op {
	case protocol.OpRetry:
		return "Retry"
	case protocol.OpReclaim:
		return "Take back"
	case protocol.OpCancel:
		return "Cancel"
	case protocol.OpChange:
		return "Change"
	case protocol.OpPause:
		return "Pause"
	case protocol.OpResume:
		return "Resume"
	case protocol.OpLimit:
		return "Change the limits"
	}
	return "Delete"
}

// confirmData is the data of the page that asks before an operation.
type confirmData struct {
	*operation
	Stat  protocol.QueueStat
	Found *group // of the operation; nil: it has none, or none of the jobs that were read is in it
	Read  int64  // jobs that were read to find it
	Error string // why they couldn't be read

	Of *protocol.Batch // of cancel_batch
}

// Removes reports whether the operation can't be undone: then the queue's name must be typed.
func (c *confirmData) Removes() bool { return c.removes() }

// Number returns how many jobs the operation changes by the statistics.
func (c *confirmData) Number() int64 {
	if c.Op == protocol.OpPurge {
		return numberIn(c.Stat, c.State)
	}
	return c.Stat.Dead
}

// confirm asks before an operation that can't be undone, or that changes many jobs.
func (p *Page) confirm(w http.ResponseWriter, r *http.Request) {
	o := readOperation(r.URL.Query())
	f := p.frame(r, "confirm", "Confirm", nil)
	d := &confirmData{operation: &o, Stat: f.Snap.queue(o.Queue)}
	f.Data = d
	if o.Op == protocol.OpCancelBatch {
		if d.Of = p.readBatch(w, r, o.Batch); d.Of != nil {
			p.show(w, http.StatusOK, f)
		}
		return
	}
	if !o.removes() && !(o.Op == protocol.OpRetry && o.bulk()) || o.Queue == "" {
		p.fail(w, r, http.StatusBadRequest, "This operation needs no confirmation.")
		return
	}
	if o.Group != "" {
		rep, err := p.newestDead(r, o.Queue)
		if err != nil {
			d.Error = explain(err)
		} else {
			d.Read = int64(len(rep.Views))
			groups := groupJobs(rep.Views)
			if i := slices.IndexFunc(groups, func(g *group) bool { return g.Key == o.Group }); i >= 0 {
				d.Found = groups[i]
			}
		}
	}
	p.show(w, http.StatusOK, f)
}

// allowed reads a form, and refuses it if its sender can't change anything.
func (p *Page) allowed(w http.ResponseWriter, r *http.Request) bool {
	canChange, csrf, _ := p.opts.Access(r)
	if !canChange {
		p.fail(w, r, http.StatusForbidden, "You can only look. To change something, log in with the token of admin.token_file or your own of admin.users; the config must have admin.access: write.")
		return false
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		p.fail(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf("The form can't be read: %v. Select fewer jobs.", err))
		return false
	}
	if subtle.ConstantTimeCompare([]byte(r.PostForm.Get("csrf_token")), []byte(csrf)) != 1 {
		p.fail(w, r, http.StatusForbidden, "The form is of another session, so nothing was changed. Go back, reload the page and try again.")
		return false
	}
	return true
}

// change carries out the operation of a form.
func (p *Page) change(w http.ResponseWriter, r *http.Request) {
	if !p.allowed(w, r) {
		return
	}
	o := readOperation(r.PostForm)
	if s, _ := p.poller.get(); o.needsConfirmation(s.queue(o.Queue)) && r.PostForm.Get("confirm") != o.Queue {
		if !o.removes() { // the page can be older than the jobs
			webpath.Redirect(w, r, address("/confirm", "op", o.Op, "queue", o.Queue, "group", o.Group, "all", map[bool]string{true: "1"}[o.All]))
			return
		}
		p.fail(w, r, http.StatusBadRequest, fmt.Sprintf("Nothing was deleted: type the queue's name, %s, to confirm.", o.Queue))
		return
	}
	if o.Op == protocol.OpCancelBatch && r.PostForm.Get("confirm") != o.Batch {
		webpath.Redirect(w, r, address("/confirm", "op", o.Op, "batch", o.Batch))
		return
	}
	if o.bulk() || o.Op == protocol.OpPurge {
		p.startTask(w, r, &o)
		return
	}
	if len(o.Queues) > 0 && (o.Op == protocol.OpPause || o.Op == protocol.OpResume) {
		p.changeQueues(w, r, &o)
		return
	}
	req, err := p.request(r, &o)
	if err != nil {
		p.failed(w, r, "Nothing was changed", err)
		return
	}
	if o.onJobs() {
		p.changeJobs(w, r, &o, req)
		return
	}
	rep, err := p.do(r, req)
	if err != nil {
		p.failed(w, r, fmt.Sprintf("The operation %s failed", o.Op), err)
		return
	}
	p.poller.refresh()
	webpath.Redirect(w, r, after(&o, rep))
}

// request returns the request of an operation on the jobs that a form names.
func (p *Page) request(r *http.Request, o *operation) (*protocol.Request, error) {
	switch o.Op {
	case protocol.OpRetry, protocol.OpDelete, protocol.OpReclaim, protocol.OpCancel:
		if len(o.IDs) == 0 {
			return nil, protocol.Errorf(protocol.CodeBadRequest, "no job is selected: choose at least one")
		}
		return &protocol.Request{Op: o.Op, Queue: o.Queue, IDs: o.IDs}, nil
	case protocol.OpChange:
		return o.changeRequest()
	case protocol.OpPause, protocol.OpResume:
		if o.Queue == "" {
			return nil, protocol.Errorf(protocol.CodeBadRequest, "no queue is selected: choose at least one")
		}
		return &protocol.Request{Op: o.Op, Queue: o.Queue}, nil
	case protocol.OpLimit:
		return o.limitRequest()
	case protocol.OpChangeSchedule:
		if o.Schedule == "" || scheduleDone[o.Do] == "" {
			return nil, protocol.Errorf(protocol.CodeBadRequest, "the page has no operation %q of a schedule", o.Do)
		}
		return &protocol.Request{Op: o.Op, Queue: o.Queue, Schedule: &protocol.Schedule{Name: o.Schedule}, Do: o.Do}, nil
	case protocol.OpCancelBatch:
		return &protocol.Request{Op: o.Op, Queue: o.Queue, Batch: o.Batch}, nil
	case protocol.OpReload:
		return &protocol.Request{Op: o.Op}, nil
	case protocol.OpEnqueue:
		return p.copyOf(r, o)
	}
	return nil, protocol.Errorf(protocol.CodeBadRequest, "the page has no operation %q", string(o.Op))
}

// changeRequest returns the request to change the priority or the time of a job.
func (o *operation) changeRequest() (*protocol.Request, error) {
	req := &protocol.Request{Op: o.Op, Queue: o.Queue, IDs: o.IDs}
	if err := cmp.Or(readNumber(o.Priority, &req.Priority), readNumber(o.Delay, &req.DelayMS)); err != nil {
		return nil, err
	}
	if len(o.IDs) == 0 || !req.Priority.Set && !req.DelayMS.Set {
		return nil, protocol.Errorf(protocol.CodeBadRequest, "nothing to change: choose a job, and a priority or a time")
	}
	return req, nil
}

// limitRequest returns the request to give a queue the limits of the form. It names those of groups only if there are some, because
// not each queue can have them.
func (o *operation) limitRequest() (*protocol.Request, error) {
	if o.Queue == "" {
		return nil, protocol.Errorf(protocol.CodeBadRequest, "no queue is selected: choose at least one")
	}
	req := &protocol.Request{Op: o.Op, Queue: o.Queue, MaxClaimed: protocol.Some[int64](0), Burst: protocol.Some[int64](0), Rate: cmp.Or(o.Rate, "0")}
	if err := cmp.Or(readNumber(o.MaxClaimed, &req.MaxClaimed), readNumber(o.Burst, &req.Burst)); err != nil {
		return nil, err
	}
	if o.HadGroupLimit {
		req.GroupLimit = protocol.Some[int64](0)
	}
	if o.HadGroupReady {
		req.GroupReady = protocol.Some[int64](0)
	}
	if err := cmp.Or(readNumber(o.GroupLimit, &req.GroupLimit), readNumber(o.GroupReady, &req.GroupReady)); err != nil {
		return nil, err
	}
	if o.Rate != "" {
		if _, _, err := protocol.ParseRate(o.Rate); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// readNumber reads a number of a form. An empty text is absent.
func readNumber(text string, to *protocol.Opt[int64]) error {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return protocol.Errorf(protocol.CodeBadRequest, "%q is not a whole number, such as 10", text)
	}
	*to = protocol.Some(n)
	return nil
}

// copyOf returns the request to enqueue a copy of a job. It has no key, because a second job with a key is a duplicate.
func (p *Page) copyOf(r *http.Request, o *operation) (*protocol.Request, error) {
	if len(o.IDs) != 1 {
		return nil, protocol.Errorf(protocol.CodeBadRequest, "choose one job to copy")
	}
	v, err := p.readJob(r, o.Queue, o.IDs[0])
	switch {
	case err != nil:
		return nil, err
	case p.opts.HidePayloads():
		return nil, errors.New("payloads are hidden (admin.payloads), so the page can't copy the job: use `qsidecar enqueue`")
	case v.LeftOut.Set:
		return nil, errors.New("the payload is too large for the page, so it can't copy the job: use `qsidecar enqueue`")
	}
	return &protocol.Request{Op: protocol.OpEnqueue, Queue: v.Queue, Job: protocol.NewJob{
		Payload: v.Payload, Priority: v.Priority, Headers: v.Headers, MaxAttempts: protocol.Some(v.MaxAttempts)}}, nil
}

// after returns the page that a browser goes to after a change.
func after(o *operation, rep *protocol.Reply) string {
	done := string(o.Op)
	if o.Op == protocol.OpChangeSchedule {
		done = ofSchedule + o.Do
	}
	if rep.Enqueued != nil {
		return address("/job", "queue", o.Queue, "id", rep.Enqueued.ID, "done", done)
	}
	back, err := url.Parse(o.Back)
	if err != nil {
		back = &url.URL{Path: "/"}
	}
	q := back.Query()
	q.Set("done", done)
	q.Set("n", fmt.Sprint(rep.Count.Or(int64(len(rep.Changes)))))
	back.RawQuery = q.Encode()
	return back.String()
}

// queuesText returns how many queues were paused or resumed, if it was more than the one of a page.
func queuesText(op protocol.Op, n int64) string {
	if n == 0 || op != protocol.OpPause && op != protocol.OpResume {
		return ""
	}
	return " " + plural(n, "queue") + "."
}

// ofSchedule is what the address of a page has before the change of a schedule.
const ofSchedule = "schedule:"

// scheduleDone are the notices after the changes of a schedule that the page offers.
var scheduleDone = map[string]string{
	protocol.DoRun: "This is the new job.", protocol.DoPause: "Paused. The schedule stores no jobs.", protocol.DoResume: "Resumed. The next time is the first one after now.",
}

// doneText returns the notice of a page after a change, from its address. An address can't contain other text.
func doneText(q url.Values) string {
	n, _ := strconv.ParseInt(q.Get("n"), 10, 64) // 0 if it isn't a number
	if do, found := strings.CutPrefix(q.Get("done"), ofSchedule); found {
		return scheduleDone[do]
	}
	op := protocol.Op(q.Get("done"))
	if i := slices.Index([]protocol.Op{protocol.OpRetry, protocol.OpDelete, protocol.OpReclaim, protocol.OpPause, protocol.OpResume, protocol.OpEnqueue, protocol.OpReload, protocol.OpChange, protocol.OpCancel, protocol.OpLimit, protocol.OpCancelBatch}, op); i >= 0 {
		return []string{"Ready again: " + plural(n, "job") + ".", "Deleted: " + plural(n, "job") + ".", "Taken back from workers: " + plural(n, "job") + ".",
			"Paused. Workers still settle the jobs that they have.", "Resumed.", "This is the copy.", "Config read again: " + plural(n, "change") + ".",
			"Changed: " + plural(n, "job") + ".", "Cancelled: " + plural(n, "job") + ".", "Limits changed. They count within a second on every host.",
			"The batch is cancelled. Jobs that this cancelled: " + count(n) + "."}[i] + queuesText(op, n)
	}
	return ""
}
