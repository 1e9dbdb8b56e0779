package bridge

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/lease"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// The log messages about jobs. They do not change, so that a search finds them. The log handler limits how often each
// is written (cmd/qsidecar). None contains a payload or a lease.
const (
	logFailed  = "a job failed and is tried again"
	logDead    = "a job is dead"
	logLost    = "a job was lost: its lease is not valid any more"
	logLeft    = "a worker left while it held jobs"
	logCommand = "an operator's command was carried out"
	logDenied  = "a request was forbidden"
	logFull    = "a connection was turned away"
)

// maxLogError is how many bytes of a job's error are logged. The job keeps all of it.
const maxLogError = 300

// jobAttrs returns the keys that identify a job in every log line.
func jobAttrs(j *lease.Held) []slog.Attr {
	attrs := make([]slog.Attr, 0, 10)
	if j.Queue != "" {
		attrs = append(attrs, slog.String("queue", j.Queue))
	}
	attrs = append(attrs, slog.String("job", cmp.Or(j.Info.ID, j.Lease.Job)))
	if j.Info.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", j.Info.Attempt), slog.Int("max_attempts", j.Info.MaxAttempts))
	}
	if j.Info.TraceID != "" {
		attrs = append(attrs, slog.String("trace_id", j.Info.TraceID))
	}
	return attrs
}

// lastAttempt reports whether a failure of this delivery is known to be the job's last.
func lastAttempt(j *lease.Held) bool {
	return j.Info.Attempt > 0 && j.Info.Attempt >= j.Info.MaxAttempts
}

// logKeys returns the keys that identify the session and its worker.
func (s *session) logKeys() []slog.Attr {
	s.mu.Lock()
	worker := s.worker
	s.mu.Unlock()
	attrs := []slog.Attr{slog.String("session", s.id)}
	if worker != "" {
		attrs = append(attrs, slog.String("worker", worker))
	}
	return attrs
}

// peerAttrs returns the keys that identify the process at the other end of a connection. A nil peer has none.
func peerAttrs(p *unixsocket.Peer) []slog.Attr {
	if p == nil {
		return nil
	}
	return []slog.Attr{slog.Any("uid", p.UID), slog.Any("pid", p.PID)}
}

// logCommanded logs an operator's command.
func (s *session) logCommanded(op protocol.Op, c *backends.Command, count int64) {
	attrs := append(s.logKeys(), slog.String("op", string(op)), slog.String("queue", c.Queue))
	if c.Kind != backends.Pause && c.Kind != backends.Resume {
		attrs = append(attrs, slog.Int64("jobs", count))
	}
	if s.peer != nil {
		attrs = append(attrs, slog.Any("uid", s.peer.UID))
	}
	s.bridge.log.LogAttrs(context.Background(), slog.LevelInfo, logCommand, attrs...)
}

// logDenied logs a request that no rule of its socket allows.
func (s *session) logDenied(op protocol.Op, queue string) {
	attrs := append(s.logKeys(), slog.String("socket", s.socket), slog.String("op", string(op)), slog.String("queue", queue))
	attrs = append(attrs, peerAttrs(s.peer)...)
	s.bridge.log.LogAttrs(context.Background(), slog.LevelInfo, logDenied, attrs...)
}

// logRefused logs a connection that was refused because of a limit.
func (b *Bridge) logRefused(socket string, who *unixsocket.Peer, why *protocol.Error) {
	attrs := append(peerAttrs(who), slog.String("socket", socket), slog.String("error", why.Message))
	b.log.LogAttrs(context.Background(), slog.LevelWarn, logFull, attrs...)
}

// logConnected logs at debug level that the session began or ended.
func (s *session) logConnected(begins bool) {
	ctx := context.Background()
	if !s.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	text := "a connection ended"
	attrs := []slog.Attr{slog.String("socket", s.socket)}
	if begins {
		text = "a connection began"
		attrs = append(attrs, peerAttrs(s.peer)...)
	} else if cause := context.Cause(s.gone); cause != nil {
		attrs = append(attrs, slog.String("cause", cause.Error()))
	}
	s.log.LogAttrs(ctx, slog.LevelDebug, text, attrs...)
}

// logJob writes a line about a job.
func (b *database) logJob(level slog.Level, text string, j *lease.Held, s *session, more ...slog.Attr) {
	ctx := context.Background()
	if !b.Log.Enabled(ctx, level) {
		return
	}
	attrs := jobAttrs(j)
	if s != nil {
		attrs = append(attrs, s.logKeys()...)
	}
	b.Log.LogAttrs(ctx, level, text, append(attrs, more...)...)
}

// logSettled logs the bad outcomes of a settle: failed attempts, dead jobs and lost leases.
func (part *settlePart) logSettled(s *session, op protocol.Op, res *backends.WriteResult) {
	if len(res.Lost) == 0 && op != protocol.OpNack {
		return
	}
	lost, dead := lostTokens(res), deadJobs(res.Failed)
	nack, _ := part.Write().(backends.Nack)
	for i, l := range part.Leases {
		j := &lease.Held{Lease: l} // nothing more is known of a job that another sidecar claimed, or this one before a restart
		if i < len(part.Runs) {
			j.Queue, j.Info = part.Runs[i].Queue, part.Runs[i].Info
		}
		if j.Queue == "" && len(res.Failed) == 1 {
			j.Queue = res.Failed[0].Queue
		}
		if lost[l.Token] {
			part.database.logJob(slog.LevelWarn, logLost, j, s, slog.String("during", string(op)))
			continue
		}
		if op == protocol.OpNack {
			all := dead == len(part.Leases)-len(lost)
			part.database.logNacked(j, s, &nack, dead > 0 && (all || nack.Dead || !nack.Snooze && lastAttempt(j)))
		}
	}
}

func lostTokens(res *backends.WriteResult) map[backends.Token]bool {
	lost := make(map[backends.Token]bool, len(res.Lost))
	for _, l := range res.Lost {
		lost[l.Token] = true
	}
	return lost
}

func deadJobs(all backends.FailedCounts) (n int) {
	for _, f := range all {
		if f.Dead {
			n += f.Jobs
		}
	}
	return n
}

func (b *database) logNacked(j *lease.Held, s *session, nack *backends.Nack, dead bool) {
	why := []slog.Attr{slog.String("cause", string(backends.CauseNacked)), slog.String("error", cut(nack.Error, maxLogError))}
	switch {
	case dead:
		b.logJob(slog.LevelWarn, logDead, j, s, why...)
	case nack.Snooze:
		b.logJob(slog.LevelDebug, "a job was given back, not now", j, s, why[1:]...)
	default:
		b.logJob(slog.LevelInfo, logFailed, j, s, why...)
	}
}

// logLeft logs that a worker disconnected, and the jobs that it held.
func (s *session) logLeft(b *database, how *backends.Release, held []lease.Held, res *backends.WriteResult) {
	if how.Uncounted {
		return // the worker released its jobs itself
	}
	lost, dead := lostTokens(res), deadJobs(res.Failed)
	all := dead == len(held)-len(lost)
	cause := slog.String("cause", string(how.Cause))
	attrs := append(s.logKeys(), cause, slog.String("error", how.Message), slog.Int("jobs", len(held)-len(lost)), slog.Int("dead", dead))
	attrs = append(attrs, peerAttrs(s.peer)...)
	b.Log.LogAttrs(context.Background(), slog.LevelWarn, logLeft, attrs...)
	for i := range held {
		switch j := &held[i]; {
		case lost[j.Lease.Token]:
			b.logJob(slog.LevelWarn, logLost, j, s, slog.String("during", "disconnect"))
		case dead > 0 && (all || lastAttempt(j)):
			b.logJob(slog.LevelWarn, logDead, j, s, cause)
		default:
			b.logJob(slog.LevelInfo, logFailed, j, s, cause)
		}
	}
}

// logGone logs the session's jobs that are no longer this sidecar's in the database.
func (b *database) logGone(s *session, gone []lease.Held) {
	for i := range gone {
		b.logJob(slog.LevelWarn, logLost, &gone[i], s, slog.String("during", "heartbeat"))
	}
}

// cut returns the beginning of a text: at most most bytes of whole characters, and "…" if something is missing.
func cut(text string, most int) string {
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}
