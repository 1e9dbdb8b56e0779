package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// settlement is an ack, nack or extend: the leases of one request, sorted by database.
type settlement struct {
	sess   *Session
	plan   *plan.Plan
	op     protocol.Op
	single bool // the request named one lease: if it is lost, the reply is an error
	total  int
	lost   []string // unreadable leases, and those of unknown databases
	parts  []settlePart

	// These save allocations: most settles have one database.
	one     [1]settlePart
	reply   protocol.Reply
	settled protocol.Settled
}

// settlePart is the part of a settlement for one database.
type settlePart struct {
	pipeline.Settle
	database *plan.Database
	text     []string // the leases as the client wrote them
	err      error

	// Backing arrays that save allocations: most settles have one lease.
	one     [1]backends.Lease
	oneText [1]string
}

// settle starts an ack, a nack or an extend.
func (s *Session) settle(req *protocol.Request) finisher {
	st := &settlement{}
	if refused := st.start(s, req); refused != nil {
		return answerWith(refused)
	}
	return finisher{rest: st}
}

// start submits the writes of a request. It returns the reply if it submits none.
func (s *settlement) start(sess *Session, req *protocol.Request) *protocol.Reply {
	s.sess, s.plan, s.op, s.single, s.parts = sess, sess.shared.Plan(), req.Op, req.Leases == nil, s.one[:0]
	if wire := s.sortLeases(req); wire != nil {
		return &protocol.Reply{Error: wire}
	}
	follow, refused := s.followUp(req)
	if refused != nil {
		return refused
	}
	for i := range s.parts {
		if err := sess.forbidsLeases(req.Op, s.parts[i].database, s.parts[i].Leases); err != nil {
			return sess.failure(err)
		}
		for _, l := range s.parts[i].Leases {
			if err := s.parts[i].database.CheckSettle(l, &sess.quota, req.Op == protocol.OpExtend); err != nil {
				return sess.failure(err)
			}
		}
	}
	for i := range s.parts {
		s.submit(&s.parts[i], req, follow)
	}
	return nil
}

// followUp returns the jobs that an ack enqueues, or why it must not enqueue them.
func (s *settlement) followUp(req *protocol.Request) ([]backends.NewJob, *protocol.Reply) {
	if req.Enqueue == nil {
		return nil, nil
	}
	db, jobs, wire := newJobs(s.plan, req.Enqueue, "enqueue", false)
	if wire == nil && len(s.parts) == 1 && s.parts[0].database != db {
		wire = protocol.BadField("enqueue", "the lease's job is in database %s, these queues are in %s: one ack is one transaction",
			s.parts[0].database.Name, db.Name)
	}
	if wire != nil {
		return nil, &protocol.Reply{Error: wire}
	}
	if err := s.sess.roomForJobs(s.plan, db, req.Enqueue); err != nil {
		return nil, s.sess.failure(err)
	}
	return jobs, nil
}

// sortLeases parses the request's leases and sorts them by database.
func (s *settlement) sortLeases(req *protocol.Request) *protocol.Error {
	texts := req.Leases
	one := [1]string{req.Lease}
	var seen map[backends.Token]struct{}
	if s.single {
		texts = one[:]
	} else {
		seen = make(map[backends.Token]struct{}, len(texts))
	}
	s.total = len(texts)
	for i, text := range texts {
		id, lease, ok := wirejob.ParseLease(text)
		var db *plan.Database
		if ok {
			var err error
			if db, err = s.plan.Owner(id); err != nil {
				return s.sess.toClient(err)
			}
		}
		if db == nil {
			s.lost = append(s.lost, text)
			continue
		}
		if _, dup := seen[lease.Token]; dup {
			e := protocol.BadField("leases", "a lease is given twice")
			e.Index = protocol.Some(int64(i))
			return e
		}
		if !s.single {
			seen[lease.Token] = struct{}{}
		}
		part := s.part(db)
		part.text = append(part.text, text)
		part.Leases = append(part.Leases, lease)
	}
	return nil
}

// part finds or creates the part of the database. The pointer is valid until the next new part.
func (s *settlement) part(db *plan.Database) *settlePart {
	for i := range s.parts {
		if s.parts[i].database == db {
			return &s.parts[i]
		}
	}
	s.parts = append(s.parts, settlePart{database: db})
	p := &s.parts[len(s.parts)-1]
	if s.single {
		p.Leases, p.text = p.one[:0], p.oneText[:0]
	}
	return p
}

// submit queues the write for one database.
func (s *settlement) submit(part *settlePart, req *protocol.Request, follow []backends.NewJob) {
	write, beside := s.write(part, req, follow), textBytes(part.text)+textBytes(s.lost)
	if extend, ok := write.(backends.Extend); ok && req.Bind {
		part.err = part.database.SubmitBind(&part.Settle, &s.sess.quota, extend, beside)
		return
	}
	part.err = part.database.SubmitSettle(&part.Settle, &s.sess.quota, write, beside)
}

func (s *settlement) write(part *settlePart, req *protocol.Request, follow []backends.NewJob) backends.Write {
	switch s.op {
	case protocol.OpAck:
		return backends.Ack{Leases: part.Leases, Result: slices.Clone(req.Result), Enqueue: follow}
	case protocol.OpNack:
		return backends.Nack{
			Leases:   part.Leases,
			Error:    req.Error,
			Delay:    wirejob.Millis(req.DelayMS.Or(0)),
			HasDelay: req.DelayMS.Set,
			Dead:     req.Dead,
			Snooze:   req.Snooze,
		}
	default:
		s.sess.mu.Lock()
		defer s.sess.mu.Unlock()
		return backends.Extend{Leases: part.Leases, Lease: wirejob.Millis(req.LeaseMS.Or(0)), Worker: s.sess.worker}
	}
}

func (s *settlement) wait() (*protocol.Reply, func()) { return s.result(nil), nil }

// result waits for all databases and builds the reply. beside can be nil.
func (s *settlement) result(beside pipeline.Waiter) *protocol.Reply {
	settled, reply := &s.settled, &s.reply
	settled.Verb, settled.Lost = s.op.Verb(), s.lost
	if settled.Lost == nil {
		settled.Lost = []string{}
	}
	reply.Settled = settled
	var failed error
	written := false
	for i := range s.parts { // all of them, because the lease tables must learn of each
		part := &s.parts[i]
		if part.err != nil {
			failed = cmp.Or(failed, part.err)
			continue
		}
		res, err := part.database.AwaitSettle(&part.Settle, beside)
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		written = written || len(res.Lost) < len(part.Leases)
		part.logSettled(s.sess, s.op, &res)
		for _, l := range res.Lost {
			settled.Lost = append(settled.Lost, part.textOf(l))
		}
		if res.Stored != nil {
			reply.EnqueuedAll = wirejob.FromStored(res.Stored)
		}
	}
	if failed != nil {
		_, locked := errors.AsType[*backends.LockedError](failed)
		if written && (backends.Retryable(failed) || locked) { // these errors claim that nothing was written
			failed = fmt.Errorf("%w: it was in another database: %s", backends.ErrUnknownOutcome, failed.Error())
		}
		return s.sess.failure(failed)
	}
	if s.single && len(settled.Lost) > 0 {
		e := leaseLost()
		if len(s.lost) > 0 {
			e = protocol.Errorf(protocol.CodeLeaseLost, "this text isn't a lease of a database of this sidecar: send the `lease` of the job, as the claim returned it")
		}
		return &protocol.Reply{Error: e}
	}
	settled.Count = int64(s.total - len(settled.Lost))
	return reply
}

func textBytes(texts []string) (n int64) {
	for _, text := range texts {
		n += int64(len(text))
	}
	return n
}

// textOf returns a lease of the part as the client wrote it.
func (s *settlePart) textOf(l backends.Lease) string {
	return s.text[slices.IndexFunc(s.Leases, func(own backends.Lease) bool { return own.Token == l.Token })]
}

// logSettled logs the bad outcomes of a settle: failed attempts, dead jobs and lost leases.
func (s *settlePart) logSettled(sess *Session, op protocol.Op, res *backends.WriteResult) {
	if len(res.Lost) == 0 && op != protocol.OpNack {
		return
	}
	nack, _ := s.Write().(backends.Nack)
	why := []slog.Attr{slog.String("cause", string(backends.CauseNacked)), slog.String("error", textfmt.Cut(nack.Error, jobevents.MaxError))}
	for j, kind := range s.Ends(res) {
		switch kind {
		case jobevents.Lost:
			logLeaseLost(s.database.Pipeline, j, sess, string(op))
		case jobevents.Dead:
			logDead(s.database.Pipeline, j, sess, why...)
		case jobevents.Failed:
			logAttemptFailed(s.database.Pipeline, j, sess, why...)
		case jobevents.Snoozed:
			if s.database.Log.Enabled(context.Background(), slog.LevelDebug) {
				s.database.Log.Debug("job snoozed", "event", "job_snoozed", jobKeys(j, sess), why[1])
			}
		}
	}
}
