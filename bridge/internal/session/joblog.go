package session

import (
	"context"
	"log/slog"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/bridge/internal/pipeline"
	"github.com/qsidecar/qsidecar/internal/jobevents"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// inline returns the keys as one argument of a logger. A group without a name is inlined.
func inline(attrs []slog.Attr) slog.Attr { return slog.GroupAttrs("", attrs...) }

// jobKeys returns the keys that identify a job and its session in a log line. A nil session has none.
func jobKeys(j *lease.Held, s *Session) slog.Attr {
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

// logKeys returns the keys that identify the session and its worker.
func (s *Session) logKeys() slog.Attr {
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

// logDenied logs a request that no rule of its socket allows.
func (s *Session) logDenied(op protocol.Op, queue string) {
	s.shared.Log.Info("request forbidden", "event", "request_forbidden", s.logKeys(), "socket", s.Socket, "op", op, "queue", queue, peerKeys(s.Peer))
}

// logUnknownQueue logs a claim of a queue that the plan doesn't have, once while workers repeat it. The worker possibly ends.
func (s *Session) logUnknownQueue(wire *protocol.Error) {
	if wire.Code == protocol.CodeUnknownQueue && s.shared.failed.IsNew("claim", wire) {
		s.shared.Log.Warn("a worker claims from an unknown queue", "event", "unknown_queue_claimed", s.logKeys(), "error", wire.Message)
	}
}

// logConnected logs at debug level that the session began or ended.
func (s *Session) logConnected(begins bool) {
	if !s.shared.Log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	if begins {
		s.log().Debug("connection opened", "event", "connection_opened", "socket", s.Socket, peerKeys(s.Peer))
		return
	}
	var cause slog.Attr
	if err := context.Cause(s.gone); err != nil {
		cause = slog.String("cause", err.Error())
	}
	s.log().Debug("connection closed", "event", "connection_closed", "socket", s.Socket, cause)
}

// logAttemptFailed logs a failed attempt of a job that is retried.
func logAttemptFailed(db *pipeline.Pipeline, j *lease.Held, s *Session, why ...slog.Attr) {
	db.Log.Info("attempt failed", "event", "attempt_failed", jobKeys(j, s), inline(why))
}

func logDead(db *pipeline.Pipeline, j *lease.Held, s *Session, why ...slog.Attr) {
	db.Log.Warn("job dead", "event", "job_dead", jobKeys(j, s), inline(why))
}

// logLeaseLost logs a lease that the session lost. during names the request or the check that detected it.
func logLeaseLost(db *pipeline.Pipeline, j *lease.Held, s *Session, during string) {
	db.Log.Warn("lease lost", "event", "lease_lost", jobKeys(j, s), "during", during)
}

// logLeft logs that a worker disconnected, and the jobs that it held.
func (s *Session) logLeft(db *pipeline.Pipeline, how *backends.Release, held int, p *pipeline.PendingWrite, res *backends.WriteResult) {
	if how.Uncounted {
		return // the worker released its jobs itself
	}
	cause := slog.String("cause", string(how.Cause))
	db.Log.Warn("worker disconnected while it held jobs", "event", "worker_disconnected",
		s.logKeys(), cause, "error", how.Message, "jobs", held-len(res.Lost), "dead", res.Failed.Dead(), peerKeys(s.Peer))
	for j, kind := range p.Ends(res) {
		switch kind {
		case jobevents.Lost:
			logLeaseLost(db, j, s, "disconnect")
		case jobevents.Dead:
			logDead(db, j, s, cause)
		default:
			logAttemptFailed(db, j, s, cause)
		}
	}
}
