package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/backendref"
)

// progressTimeout is how long a job waits for its progress: for a write before it goes back to its queue, and for the query
// before it is handed out. It then goes on without.
const progressTimeout = time.Second

// lastProgressTimeout bounds the last write of progress.
const lastProgressTimeout = time.Second

// ReportProgress replaces what is known of the progress of a job. If confirm isn't nil, only its result shows whether the lease is
// valid. The error is progress.ErrLost or progress.ErrBusy, or that of the database.
func (p *Pipeline) ReportProgress(lease backends.Lease, to backends.Progress) (confirm func(ctx context.Context) error, err error) {
	unknown, err := p.progress.Report(lease, to)
	if err != nil || !unknown {
		return nil, err
	}
	return func(ctx context.Context) error {
		ctx, cancel := backendref.WithTimeout(ctx, min(p.times.Timeout(), 10*time.Second))
		defer cancel()
		return p.progress.Confirm(ctx, lease)
	}, nil
}

// FillProgress sets the progress of jobs that possibly have some. If the database doesn't return it in time, they have none.
func (p *Pipeline) FillProgress(ctx context.Context, jobs []backends.Job) {
	var ids []string
	for i := range jobs {
		if jobs[i].HasProgress {
			ids = append(ids, jobs[i].ID)
		}
	}
	if ids == nil {
		return
	}
	all := p.progressOf(ctx, ids)
	for i := range jobs {
		if found, ok := all[jobs[i].ID]; ok && jobs[i].HasProgress {
			jobs[i].Progress = &found
		}
	}
}

// FillViews is FillProgress for jobs that an operator sees. The jobs of other databases are unchanged.
func (p *Pipeline) FillViews(ctx context.Context, views []backends.View, mine func(queue string) bool) {
	var ids []string
	for i := range views {
		if views[i].HasProgress && mine(views[i].Queue) {
			ids = append(ids, views[i].ID)
		}
	}
	if ids == nil {
		return
	}
	all := p.progressOf(ctx, ids)
	for i := range views {
		if found, ok := all[views[i].ID]; ok && views[i].HasProgress && mine(views[i].Queue) {
			views[i].Progress = &found
		}
	}
}

func (p *Pipeline) progressOf(ctx context.Context, ids []string) map[string]backends.Progress {
	ctx, cancel := context.WithTimeoutCause(ctx, progressTimeout, fmt.Errorf("no answer within %v", progressTimeout))
	defer cancel()
	all, err := p.backend.ProgressOf(ctx, ids)
	if err != nil && p.failed.IsNew("progress", err) {
		p.Log.Warn("can't read the progress of jobs", "event", "progress_read_failed", "error", err)
	}
	return all
}

// afterProgress calls push when the reports about leases are saved, or can't be in time. Their jobs go back to their queues.
func (p *Pipeline) afterProgress(leases []backends.Lease, push func()) {
	if !p.progress.Unsaved(leases) {
		push()
		return
	}
	p.flushes.Go(func() {
		ctx, cancel := backendref.WithTimeout(context.Background(), min(progressTimeout, p.times.Timeout()/4))
		p.progress.Flush(ctx, leases)
		cancel()
		push()
	})
}
