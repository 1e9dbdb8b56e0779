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
func (st *settlement) start(s *Session, req *protocol.Request) *protocol.Reply {
	st.sess, st.plan, st.op, st.single, st.parts = s, s.shared.Plan(), req.Op, req.Leases == nil, st.one[:0]
	if wire := st.sortLeases(req); wire != nil {
		return &protocol.Reply{Error: wire}
	}
	follow, refused := st.followUp(req)
	if refused != nil {
		return refused
	}
	for i := range st.parts {
		if err := s.forbidsLeases(req.Op, st.parts[i].database, st.parts[i].Leases); err != nil {
			return s.failure(err)
		}
		for _, l := range st.parts[i].Leases {
			if err := st.parts[i].database.CheckSettle(l, &s.quota, req.Op == protocol.OpExtend); err != nil {
				return s.failure(err)
			}
		}
	}
	for i := range st.parts {
		st.submit(&st.parts[i], req, follow)
	}
	return nil
}

// followUp returns the jobs that an ack enqueues, or why it must not enqueue them.
func (st *settlement) followUp(req *protocol.Request) ([]backends.NewJob, *protocol.Reply) {
	if req.Enqueue == nil {
		return nil, nil
	}
	db, jobs, wire := newJobs(st.plan, req.Enqueue, "enqueue", false)
	if wire == nil && len(st.parts) == 1 && st.parts[0].database != db {
		wire = protocol.BadField("enqueue", "the lease's job is in database %s, these queues are in %s: one ack is one transaction",
			st.parts[0].database.Name, db.Name)
	}
	if wire != nil {
		return nil, &protocol.Reply{Error: wire}
	}
	if err := st.sess.roomForJobs(st.plan, db, req.Enqueue); err != nil {
		return nil, st.sess.failure(err)
	}
	return jobs, nil
}

// sortLeases parses the request's leases and sorts them by database.
func (st *settlement) sortLeases(req *protocol.Request) *protocol.Error {
	texts := req.Leases
	one := [1]string{req.Lease}
	var seen map[backends.Token]struct{}
	if st.single {
		texts = one[:]
	} else {
		seen = make(map[backends.Token]struct{}, len(texts))
	}
	st.total = len(texts)
	for i, text := range texts {
		id, lease, ok := wirejob.ParseLease(text)
		var db *plan.Database
		if ok {
			var err error
			if db, err = st.plan.Owner(id); err != nil {
				return toClient(err, st.sess.log())
			}
		}
		if db == nil {
			st.lost = append(st.lost, text)
			continue
		}
		if _, dup := seen[lease.Token]; dup {
			e := protocol.BadField("leases", "a lease is given twice")
			e.Index = protocol.Some(int64(i))
			return e
		}
		if !st.single {
			seen[lease.Token] = struct{}{}
		}
		part := st.part(db)
		part.text = append(part.text, text)
		part.Leases = append(part.Leases, lease)
	}
	return nil
}

// part finds or creates the part of the database. The pointer is valid until the next new part.
func (st *settlement) part(db *plan.Database) *settlePart {
	for i := range st.parts {
		if st.parts[i].database == db {
			return &st.parts[i]
		}
	}
	st.parts = append(st.parts, settlePart{database: db})
	p := &st.parts[len(st.parts)-1]
	if st.single {
		p.Leases, p.text = p.one[:0], p.oneText[:0]
	}
	return p
}

// submit queues the write for one database.
func (st *settlement) submit(part *settlePart, req *protocol.Request, follow []backends.NewJob) {
	write, beside := st.write(part, req, follow), textBytes(part.text)+textBytes(st.lost)
	if extend, ok := write.(backends.Extend); ok && req.Bind {
		part.err = part.database.SubmitBind(&part.Settle, &st.sess.quota, extend, beside)
		return
	}
	part.err = part.database.SubmitSettle(&part.Settle, &st.sess.quota, write, beside)
}

func (st *settlement) write(part *settlePart, req *protocol.Request, follow []backends.NewJob) backends.Write {
	switch st.op {
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
		st.sess.mu.Lock()
		defer st.sess.mu.Unlock()
		return backends.Extend{Leases: part.Leases, Lease: wirejob.Millis(req.LeaseMS.Or(0)), Worker: st.sess.worker}
	}
}

func (st *settlement) wait() (*protocol.Reply, func()) { return st.result(), nil }

// result waits for all databases and builds the reply.
func (st *settlement) result() *protocol.Reply {
	settled, reply := &st.settled, &st.reply
	settled.Verb, settled.Lost = st.op.Verb(), st.lost
	if settled.Lost == nil {
		settled.Lost = []string{}
	}
	reply.Settled = settled
	var failed error
	written := false
	for i := range st.parts { // all of them, because the lease tables must learn of each
		part := &st.parts[i]
		if part.err != nil {
			failed = cmp.Or(failed, part.err)
			continue
		}
		res, err := part.database.AwaitSettle(&part.Settle)
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		written = written || len(res.Lost) < len(part.Leases)
		part.logSettled(st.sess, st.op, &res)
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
		return st.sess.failure(failed)
	}
	if st.single && len(settled.Lost) > 0 {
		return &protocol.Reply{Error: leaseLost()}
	}
	settled.Count = int64(st.total - len(settled.Lost))
	return reply
}

func textBytes(texts []string) (n int64) {
	for _, text := range texts {
		n += int64(len(text))
	}
	return n
}

// textOf returns a lease of the part as the client wrote it.
func (part *settlePart) textOf(l backends.Lease) string {
	return part.text[slices.IndexFunc(part.Leases, func(own backends.Lease) bool { return own.Token == l.Token })]
}

// logSettled logs the bad outcomes of a settle: failed attempts, dead jobs and lost leases.
func (part *settlePart) logSettled(s *Session, op protocol.Op, res *backends.WriteResult) {
	if len(res.Lost) == 0 && op != protocol.OpNack {
		return
	}
	nack, _ := part.Write().(backends.Nack)
	why := []slog.Attr{slog.String("cause", string(backends.CauseNacked)), slog.String("error", textfmt.Cut(nack.Error, jobevents.MaxError))}
	for j, kind := range part.Ends(res) {
		switch kind {
		case jobevents.Lost:
			logLeaseLost(part.database.Pipeline, j, s, string(op))
		case jobevents.Dead:
			logDead(part.database.Pipeline, j, s, why...)
		case jobevents.Failed:
			logAttemptFailed(part.database.Pipeline, j, s, why...)
		case jobevents.Snoozed:
			if part.database.Log.Enabled(context.Background(), slog.LevelDebug) {
				part.database.Log.Debug("job snoozed", "event", "job_snoozed", jobKeys(j, s), why[1])
			}
		}
	}
}
