package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/internal/webpath"
	"github.com/qsidecar/qsidecar/protocol"
)

const (
	maxRunning = 4  // operations that run at once
	maxTasks   = 20 // operations that are remembered
	batchSize  = 1000
)

// doFunc carries out one request.
type doFunc = func(context.Context, *protocol.Request) (*protocol.Reply, error)

// tasks are the operations that take several requests. They run in the sidecar, whether or not a browser watches.
type tasks struct {
	ctx context.Context
	wg  *sync.WaitGroup
	do  doFunc

	mu     sync.Mutex
	closed bool
	lastID int
	all    []*task // the newest first
}

// task is one such operation.
type task struct {
	operation
	ID      int
	Actor   string
	Started time.Time
	stop    context.CancelCauseFunc
	Left    []unchanged // of a selection

	mu sync.Mutex
	progress
}

// progress is how far a task is.
type progress struct {
	Total   int64 // jobs at the start by the statistics, possibly an estimate
	Seen    int64 // jobs that were read
	Changed int64
	Skipped int64 // jobs that could not be changed
	Why     string
	Ended   time.Time // zero: it runs
	Err     error
}

var errStopped = errors.New("an operator stopped it: the jobs that were changed stay changed")

func newTasks(ctx context.Context, wg *sync.WaitGroup, do doFunc) *tasks {
	return &tasks{ctx: ctx, wg: wg, do: do}
}

// start starts an operation. ctx has the values of the request that asked for it.
func (ts *tasks) start(ctx context.Context, o *operation, actor string, total int64) (*task, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed {
		return nil, protocol.Errorf(protocol.CodeDraining, "the sidecar is stopping")
	}
	if ts.runningLocked() >= maxRunning {
		return nil, protocol.Errorf(protocol.CodeBusy, "%d operations run already: wait for one of them, or stop it", maxRunning)
	}
	ts.lastID++
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	t := &task{operation: *o, ID: ts.lastID, Actor: actor, Started: time.Now(), stop: stop, progress: progress{Total: total}}
	ts.all = append([]*task{t}, ts.all...)
	ts.forgetLocked()
	end := context.AfterFunc(ts.ctx, func() { stop(errors.New("the sidecar stopped")) })
	ts.wg.Go(func() {
		defer end()
		err := t.run(ctx, ts.do)
		if ctx.Err() != nil && err != nil {
			err = context.Cause(ctx)
		}
		t.update(func(p *progress) { p.Ended, p.Err = time.Now(), err })
		stop(nil)
	})
	return t, nil
}

// add adds an operation that has ended to the list.
func (ts *tasks) add(t *task) *task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.lastID++
	t.ID = ts.lastID
	ts.all = append([]*task{t}, ts.all...)
	ts.forgetLocked()
	return t
}

// forgetLocked removes the oldest tasks that have ended.
func (ts *tasks) forgetLocked() {
	for i := len(ts.all) - 1; i > 0 && len(ts.all) > maxTasks; i-- {
		if !ts.all[i].Progress().Ended.IsZero() {
			ts.all = slices.Delete(ts.all, i, i+1)
		}
	}
}

func (ts *tasks) runningLocked() (n int) {
	for _, t := range ts.all {
		if t.Progress().Ended.IsZero() {
			n++
		}
	}
	return n
}

// running returns how many tasks run.
func (ts *tasks) running() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.runningLocked()
}

// list returns the tasks, the newest first.
func (ts *tasks) list() []*task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.Clone(ts.all)
}

// find returns a task, or nil.
func (ts *tasks) find(id string) *task {
	n, _ := strconv.Atoi(id) // 0, which no task has, if it isn't a number
	for _, t := range ts.list() {
		if t.ID == n {
			return t
		}
	}
	return nil
}

// close keeps new tasks from starting.
func (ts *tasks) close() {
	ts.mu.Lock()
	ts.closed = true
	ts.mu.Unlock()
}

// Progress returns how far the task is.
func (t *task) Progress() progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress
}

func (t *task) update(f func(*progress)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.progress)
}

// startTask starts the operation of a form and shows its progress.
func (p *Page) startTask(w http.ResponseWriter, r *http.Request, o *operation) {
	if !o.valid() {
		p.fail(w, r, http.StatusBadRequest, fmt.Sprintf("The page has no operation %q on many jobs.", string(o.Op)))
		return
	}
	s, _ := p.poller.get()
	stat := s.queue(o.Queue)
	total := stat.Dead
	if o.Op == protocol.OpPurge {
		total = numberIn(stat, o.State)
	}
	_, _, actor := p.opts.Access(r)
	t, err := p.tasks.start(r.Context(), o, actor, total)
	if err != nil {
		p.failed(w, r, "Nothing was changed", err)
		return
	}
	webpath.Redirect(w, r, address("/task", "id", t.ID))
}

// valid reports whether the operation is one of a task.
func (o *operation) valid() bool {
	if o.Op == protocol.OpPurge {
		return o.Queue != "" && slices.Contains(states, o.State) && o.State != protocol.StateClaimed
	}
	return o.Queue != "" && (o.Op == protocol.OpRetry || o.Op == protocol.OpDelete)
}

// tasksData is the data of the list of operations and changes.
type tasksData struct {
	Tasks   []*task
	Changes []Change
}

// taskList lists the operations on many jobs, and all changes.
func (p *Page) taskList(w http.ResponseWriter, r *http.Request) {
	p.show(w, http.StatusOK, p.frame(r, "tasks", "Operations", tasksData{p.tasks.list(), p.opts.Changes()}))
}

// task shows the progress of an operation.
func (p *Page) task(w http.ResponseWriter, r *http.Request) {
	t := p.tasks.find(r.URL.Query().Get("id"))
	if t == nil {
		p.fail(w, r, http.StatusNotFound, "The sidecar doesn't remember this operation. It forgets them when it restarts.")
		return
	}
	p.show(w, http.StatusOK, p.frame(r, "task", "Operation", t))
}

// stopTask stops an operation.
func (p *Page) stopTask(w http.ResponseWriter, r *http.Request) {
	if !p.allowed(w, r) {
		return
	}
	t := p.tasks.find(r.PostForm.Get("id"))
	if t == nil {
		p.fail(w, r, http.StatusNotFound, "The sidecar doesn't remember this operation. It forgets them when it restarts.")
		return
	}
	t.stop(errStopped)
	webpath.Redirect(w, r, address("/task", "id", t.ID))
}
