package web

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// deadJobs are the dead jobs of a queue, as a sidecar lists them. A job that is retried dies again at once.
type deadJobs struct {
	now     time.Time // of the database
	adopted bool      // they come in the order of claims
	views   []protocol.JobView
	retried map[string]int
}

func newDeadJobs(n int, died time.Time, adopted bool) *deadJobs {
	d := &deadJobs{now: died, adopted: adopted, retried: map[string]int{}}
	for i := range n {
		d.views = append(d.views, protocol.JobView{ID: fmt.Sprint(i), State: protocol.StateDead, FinishedAt: protocol.Some(died.UnixMilli())})
	}
	return d
}

// do carries out the requests of a task.
func (d *deadJobs) do(_ context.Context, req *protocol.Request) (*protocol.Reply, error) {
	if req.Op == protocol.OpRetry {
		return d.retry(req.IDs)
	}
	if req.Newest && d.adopted {
		return nil, protocol.Errorf(protocol.CodeUnsupported, "jobs cannot be listed with the newest first")
	}
	views := slices.Clone(d.views)
	if req.Newest {
		slices.Reverse(views)
	}
	first := 1 + slices.IndexFunc(views, func(v protocol.JobView) bool { return v.ID == req.After })
	views = views[first:]
	return &protocol.Reply{Views: views[:min(len(views), int(req.Max.Value))]}, nil
}

func (d *deadJobs) retry(ids []string) (*protocol.Reply, error) {
	d.now = d.now.Add(time.Minute)
	for _, id := range ids {
		if d.retried[id]++; d.retried[id] > 1 {
			return nil, fmt.Errorf("job %s is retried again", id)
		}
		i := slices.IndexFunc(d.views, func(v protocol.JobView) bool { return v.ID == id })
		v := d.views[i]
		v.FinishedAt = protocol.Some(d.now.UnixMilli())
		if d.adopted {
			d.views[i] = v
		} else {
			d.views = append(slices.Delete(d.views, i, i+1), v)
		}
	}
	return &protocol.Reply{Count: protocol.Some(int64(len(ids)))}, nil
}

// TestRetryAllRetriesEachOnce checks that an operation on all dead jobs changes each of them once, though they die again
// while it runs: in an adopted table, whose jobs come in the order of claims, and by whatever clock the database has.
func TestRetryAllRetriesEachOnce(t *testing.T) {
	const n = 2*batchSize + 1
	now := time.Now()
	for name, d := range map[string]*deadJobs{
		"own table":               newDeadJobs(n, now.Add(-time.Second), false),
		"database's clock ahead":  newDeadJobs(n, now.Add(time.Hour), false),
		"database's clock behind": newDeadJobs(n, now.Add(-time.Hour), false),
		"adopted table":           newDeadJobs(n, now.Add(-time.Second), true),
		"no dead job":             newDeadJobs(0, now, false),
		"no dead adopted job":     newDeadJobs(0, now, true),
	} {
		want := len(d.views)
		o := &task{operation: operation{Op: protocol.OpRetry, Queue: "q", All: true}, Started: now}
		if err := o.run(testwait.Context(t), d.do); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(d.retried) != want {
			t.Errorf("%s: %d of %d jobs were retried", name, len(d.retried), want)
		}
	}
}
