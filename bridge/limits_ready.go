package bridge

import (
	"context"
	"errors"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
	"github.com/qsidecar/qsidecar/protocol"
)

// roomForJobs checks new jobs against the limits of auto-created queues and of their queues' ready jobs.
func (s *session) roomForJobs(p *plan, db *database, jobs []protocol.NewJob) error {
	for i := range jobs {
		if err := s.roomForName(p, jobs[i].Queue); err != nil {
			return err
		}
	}
	if !p.limited {
		return nil
	}
	count := make(map[*depth.ReadyCount]int64, 1)
	for i := range jobs {
		if q, _ := p.queue(jobs[i].Queue); q.MaxReady > 0 {
			count[db.ReadyLimits.Queue(jobs[i].Queue)]++
		}
	}
	if len(count) > 0 && s.noDatabaseWait {
		return backends.Unavailable(context.Cause(s.gone))
	}
	looks := make(map[*depth.ReadyCount]*depth.Query, 1)
	for q := range count { // start all queries, then wait for each
		looks[q] = q.Refresh()
	}
	var err error
	for q, n := range count {
		if !q.Await(s.gone.Done(), looks[q]) {
			s.noDatabaseWait = true
			err = errors.Join(err, backends.Unavailable(context.Cause(s.gone)))
		}
		if err == nil {
			most, _ := p.queue(q.Name)
			err = q.Reserve(n, int64(most.MaxReady))
		}
	}
	return err
}
