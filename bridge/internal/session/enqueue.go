package session

import (
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/depth"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/protocol"
)

// enqueueWait is how long an enqueue waits for its commit.
const enqueueWait = 5 * time.Second

func (s *Session) enqueue(req *protocol.Request) finisher {
	jobs := req.Jobs
	single := jobs == nil
	if single {
		jobs = []protocol.NewJob{req.Job}
	}
	p := s.shared.Plan()
	db, stored, wire := newJobs(p, jobs, "jobs", single)
	if wire != nil {
		return fail(wire)
	}
	if err := s.roomForJobs(p, db, jobs); err != nil {
		return answerWith(s.failure(err))
	}
	write, err := db.SubmitWrite(&s.quota, backends.Enqueue{Jobs: stored})
	if err != nil {
		return answerWith(s.failure(err))
	}
	return finisher{rest: later(func() (*protocol.Reply, func()) {
		res, err := db.AwaitWrite(write, enqueueWait)
		if err != nil {
			return s.failure(err), nil
		}
		all := wirejob.FromStored(res.Stored)
		if single {
			return &protocol.Reply{Enqueued: &all[0]}, nil
		}
		return &protocol.Reply{EnqueuedAll: all}, nil
	})}
}

// newJobs converts the jobs of a request to jobs of one database. field names the list that they came in.
func newJobs(p *plan.Plan, jobs []protocol.NewJob, field string, single bool) (*plan.Database, []backends.NewJob, *protocol.Error) {
	at := func(e *protocol.Error, i int) *protocol.Error {
		if !single {
			e.Index = protocol.Some(int64(i))
		}
		return e
	}
	var db *plan.Database
	out := make([]backends.NewJob, len(jobs))
	for i := range jobs {
		q := p.Queue(jobs[i].Queue)
		if q == nil {
			return nil, nil, at(p.UnknownQueue(jobs[i].Queue), i)
		}
		if db == nil {
			db = q.Database
		} else if db != q.Database {
			return nil, nil, at(protocol.BadField(field, "queue %s is in another database than queue %s: one request is one transaction",
				jobs[i].Queue, jobs[0].Queue), i)
		}
		if wire := batchHeaders(&jobs[i]); wire != nil {
			return nil, nil, at(wire, i)
		}
		out[i] = wirejob.Stored(&jobs[i], q.KeyTTL, q.Expiry)
	}
	return db, out, nil
}

// roomForJobs checks new jobs against the limits of auto-created queues and of their queues' ready jobs.
func (s *Session) roomForJobs(p *plan.Plan, db *plan.Database, jobs []protocol.NewJob) error {
	for i := range jobs {
		if err := s.roomForName(p, jobs[i].Queue); err != nil {
			return err
		}
	}
	if !p.Limited {
		return nil
	}
	count := make(map[*depth.ReadyCount]int64, 1)
	for i := range jobs {
		if p.Queue(jobs[i].Queue).MaxReady > 0 {
			count[db.ReadyLimits.Queue(jobs[i].Queue)]++
		}
	}
	if len(count) > 0 && s.noDatabaseWait {
		return backends.Unavailable(context.Cause(s.gone))
	}
	queries := make(map[*depth.ReadyCount]*depth.Query, 1)
	for q := range count { // start all queries, then wait for each
		queries[q] = q.Refresh()
	}
	var err error
	for q, n := range count {
		if !q.Await(s.gone.Done(), queries[q]) {
			s.noDatabaseWait = true
			err = errors.Join(err, backends.Unavailable(context.Cause(s.gone)))
		}
		if err == nil {
			err = q.Reserve(n, p.Queue(q.Name).MaxReady)
		}
	}
	return err
}

// roomForName checks a queue's name against the limit of auto-created queues.
func (s *Session) roomForName(p *plan.Plan, name string) error {
	if _, named := p.Queues[name]; named {
		return nil
	}
	var user uint32
	if s.Peer != nil {
		user = s.Peer.UID
	}
	most := p.QueueNames
	ok, look := s.shared.Names.Use(name, user, most)
	if look {
		s.shared.ForgetNames()
	}
	if ok {
		return nil
	}
	e := protocol.Errorf(protocol.CodeBusy, "can't create queue %q: this user's clients use %d auto-created queues, which is the limit "+
		"(limits.queue_names in the sidecar's config): name queues in the config, or use fewer", name, most)
	e.RetryMS = protocol.Some(quota.QueueNameAge.Milliseconds())
	return e
}
