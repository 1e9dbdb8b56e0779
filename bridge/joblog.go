package bridge

import (
	"context"
	"log/slog"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// inline returns the keys as one argument of a logger. A group without a name is inlined.
func inline(attrs []slog.Attr) slog.Attr { return slog.GroupAttrs("", attrs...) }

// jobKeys returns the keys that identify a job and its session in a log line. A nil session has none.
func jobKeys(j *lease.Held, s *session) slog.Attr {
	attrs := make([]slog.Attr, 0, 10)
	if j.Queue != "" {
		attrs = append(attrs, slog.String("queue", j.Queue))
	}
	attrs = append(attrs, slog.String("job", j.ID()))
	if j.Info.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", j.Info.Attempt), slog.Int("max_attempts", j.Info.MaxAttempts))
	}
	if id, ok := protocol.TraceID(j.Info.TraceParent); ok {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	if s != nil {
		attrs = append(attrs, s.logKeys())
	}
	return inline(attrs)
}

// Identify returns the session's id and the name of its worker.
func (s *session) Identify() (session, worker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id, s.worker
}

// logKeys returns the keys that identify the session and its worker.
func (s *session) logKeys() slog.Attr {
	id, worker := s.Identify()
	attrs := []slog.Attr{slog.String("session", id)}
	if worker != "" {
		attrs = append(attrs, slog.String("worker", worker))
	}
	return inline(attrs)
}

// peerKeys returns the keys that identify the process at the other end of a connection, as far as they are known.
func peerKeys(p *unixsocket.Peer) slog.Attr {
	return slog.Attr{Value: p.LogValue()}
}

// logCommanded logs an operator's command.
func (s *session) logCommanded(op protocol.Op, c *backends.Command, count int64) {
	var jobs, uid slog.Attr
	if c.Kind != backends.Pause && c.Kind != backends.Resume {
		jobs = slog.Int64("jobs", count)
	}
	if s.peer != nil && s.peer.IsKnown() {
		uid = slog.Any("uid", s.peer.UID)
	}
	s.bridge.log.Info("operator command", "event", "operator_command", s.logKeys(), "op", op, "queue", c.Queue, jobs, uid)
}

// logDenied logs a request that no rule of its socket allows.
func (s *session) logDenied(op protocol.Op, queue string) {
	s.bridge.log.Info("request forbidden", "event", "request_forbidden", s.logKeys(), "socket", s.socket, "op", op, "queue", queue, peerKeys(s.peer))
}

// logRefused logs a connection that was refused because of a limit.
func (b *Bridge) logRefused(socket string, who *unixsocket.Peer, why *protocol.Error) {
	b.log.Warn("connection rejected", "event", "connection_rejected", peerKeys(who), "socket", socket, "error", why.Message)
}

// logConnected logs at debug level that the session began or ended.
func (s *session) logConnected(begins bool) {
	if !s.bridge.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	if begins {
		s.log().Debug("connection opened", "event", "connection_opened", "socket", s.socket, peerKeys(s.peer))
		return
	}
	var cause slog.Attr
	if err := context.Cause(s.gone); err != nil {
		cause = slog.String("cause", err.Error())
	}
	s.log().Debug("connection closed", "event", "connection_closed", "socket", s.socket, cause)
}

// logAttemptFailed logs a failed attempt of a job that is retried.
func (b *database) logAttemptFailed(j *lease.Held, s *session, why ...slog.Attr) {
	b.Log.Info("attempt failed", "event", "attempt_failed", jobKeys(j, s), inline(why))
}

func (b *database) logDead(j *lease.Held, s *session, why ...slog.Attr) {
	b.Log.Warn("job dead", "event", "job_dead", jobKeys(j, s), inline(why))
}

// logLeaseLost logs a lease that the session lost. during names the request or the check that detected it.
func (b *database) logLeaseLost(j *lease.Held, s *session, during string) {
	b.Log.Warn("lease lost", "event", "lease_lost", jobKeys(j, s), "during", during)
}

// logSettled logs the bad outcomes of a settle: failed attempts, dead jobs and lost leases.
func (part *settlePart) logSettled(s *session, op protocol.Op, res *backends.WriteResult) {
	if len(res.Lost) == 0 && op != protocol.OpNack {
		return
	}
	nack, _ := part.Write().(backends.Nack)
	why := []slog.Attr{slog.String("cause", string(backends.CauseNacked)), slog.String("error", textfmt.Cut(nack.Error, jobevents.MaxError))}
	for j, kind := range part.Ends(res) {
		switch kind {
		case jobevents.Lost:
			part.database.logLeaseLost(j, s, string(op))
		case jobevents.Dead:
			part.database.logDead(j, s, why...)
		case jobevents.Failed:
			part.database.logAttemptFailed(j, s, why...)
		case jobevents.Snoozed:
			if part.database.Log.Enabled(context.Background(), slog.LevelDebug) {
				part.database.Log.Debug("job snoozed", "event", "job_snoozed", jobKeys(j, s), why[1])
			}
		}
	}
}

// logLeft logs that a worker disconnected, and the jobs that it held.
func (s *session) logLeft(b *database, how *backends.Release, held int, p *pipeline.PendingWrite, res *backends.WriteResult) {
	if how.Uncounted {
		return // the worker released its jobs itself
	}
	cause := slog.String("cause", string(how.Cause))
	b.Log.Warn("worker disconnected while it held jobs", "event", "worker_disconnected",
		s.logKeys(), cause, "error", how.Message, "jobs", held-len(res.Lost), "dead", res.Failed.Dead(), peerKeys(s.peer))
	for j, kind := range p.Ends(res) {
		switch kind {
		case jobevents.Lost:
			b.logLeaseLost(j, s, "disconnect")
		case jobevents.Dead:
			b.logDead(j, s, cause)
		default:
			b.logAttemptFailed(j, s, cause)
		}
	}
}

// logGone logs the session's jobs that are no longer this sidecar's in the database.
func (b *database) logGone(s *session, gone []lease.Held) {
	for i := range gone {
		b.logLeaseLost(&gone[i], s, "heartbeat")
	}
}
