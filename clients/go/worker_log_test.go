package qsidecar_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// lines is a log handler that sends each record's level and text to a channel, and how many jobs run.
type lines chan string

func (l lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l lines) WithGroup(string) slog.Handler            { return l }
func (l lines) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "running_jobs" && a.Value.Int64() > 0 {
			line += " " + a.String()
		}
		return true
	})
	l <- line
	return nil
}

// logged returns a Worker on a fake sidecar, and its log.
func logged(t *testing.T, w qsidecar.Worker) (*server, *worked, lines) {
	t.Helper()
	s, log := listen(t), make(lines, 100)
	w.Queues, w.Options.Socket, w.Logger = []string{"q"}, s.socket, slog.New(log)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	end := later(func() (struct{}, error) { return struct{}{}, w.Run(ctx) })
	return s, &worked{peer: s.accept(), stop: stop, end: end}, log
}

func (l lines) want(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, testwait.Receive(t, "a line of the log", l))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}

func TestWorkerLogsFailedJobs(t *testing.T) {
	t.Parallel()
	outcomes := map[string]error{
		"retry":  &qsidecar.RetryError{Err: errors.New("busy there")},
		"dead":   &qsidecar.DeadError{Err: errors.New("no use")},
		"failed": errors.New("boom"), "last": errors.New("boom"),
	}
	_, w, log := logged(t, qsidecar.Worker{Handler: func(_ context.Context, j *qsidecar.Job) error { return outcomes[j.ID] }})
	for _, id := range []string{"retry", "dead", "failed", "last"} {
		most := int64(20)
		if id == "last" {
			most = 1
		}
		w.reply(w.expect(protocol.OpClaim), &protocol.Reply{OK: true, Jobs: []protocol.Job{{ID: id, Queue: "q", Lease: id, Attempt: 1, MaxAttempts: most}}})
		w.settled(w.expect(protocol.OpNack), "nacked", 1)
	}
	w.stopped()
	log.want(t, "INFO qsidecar: worker started", "WARN qsidecar: the job will be tried again", "ERROR qsidecar: the job is dead",
		"ERROR qsidecar: the job will be tried again", "ERROR qsidecar: the job is dead, after its last attempt", "INFO qsidecar: worker stopping", "INFO qsidecar: worker stopped")
}

// TestWorkerLogsARunOverItsTimeLimit checks the text about a job whose time limit was over before its settle.
func TestWorkerLogsARunOverItsTimeLimit(t *testing.T) {
	t.Parallel()
	_, w, log := logged(t, qsidecar.Worker{Handler: func(ctx context.Context, j *qsidecar.Job) error {
		if _, limited := j.TimeoutMS.Get(); limited {
			<-ctx.Done()
		}
		return nil
	}})
	log.want(t, "INFO qsidecar: worker started")
	for _, c := range []struct {
		limit protocol.Opt[int64]
		want  string
	}{{protocol.Some[int64](1), "ran longer than its time limit of 1ms"}, {want: "could not be settled: its lease was lost"}} {
		job := protocol.Job{ID: "j", Queue: "q", Lease: "L", Attempt: 1, MaxAttempts: 1, TimeoutMS: c.limit}
		w.reply(w.expect(protocol.OpClaim), &protocol.Reply{OK: true, Jobs: []protocol.Job{job}})
		w.fail(w.expect(protocol.OpAck), protocol.CodeLeaseLost)
		log.want(t, "WARN qsidecar: the job "+c.want)
	}
	w.stopped()
}

// TestWorkerLogsAnOutage checks that each outage and its end are logged once, whatever the
// concurrency is.
func TestWorkerLogsAnOutage(t *testing.T) {
	t.Parallel()
	s, w, log := logged(t, qsidecar.Worker{Concurrency: 2, Handler: func(context.Context, *qsidecar.Job) error { return nil }})
	log.want(t, "INFO qsidecar: worker started")
	first, second := w.expect(protocol.OpClaim), w.expect(protocol.OpClaim)
	w.fail(first, protocol.CodeInternal)
	w.fail(second, protocol.CodeInternal)
	log.want(t, "WARN qsidecar: can't claim jobs")
	first = w.expect(protocol.OpClaim)
	w.expect(protocol.OpClaim)
	w.jobs(first)
	log.want(t, "WARN qsidecar: jobs can be claimed again")
	w.expect(protocol.OpClaim)

	s.down()
	w.close()
	log.want(t, "WARN qsidecar: can't claim jobs")
	s.up()
	w.peer = s.accept()
	log.want(t, "WARN qsidecar: jobs can be claimed again")
	w.stopped()
	log.want(t, "INFO qsidecar: worker stopping", "INFO qsidecar: worker stopped")
	if len(log) > 0 {
		t.Errorf("the log has %d lines more", len(log))
	}
}

// waitingLog is a log handler that waits in its first warning until done is closed.
type waitingLog struct {
	lines
	begun, done chan struct{}
}

func (w waitingLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && len(w.begun) == 0 {
		w.begun <- struct{}{}
		<-w.done
	}
	return w.lines.Handle(ctx, r)
}

// TestWorkerConnectsWhileItsLogWaits checks that the client connects again while the log handler handles the outage. A
// handler can store its lines as jobs, and then it waits for the sidecar.
func TestWorkerConnectsWhileItsLogWaits(t *testing.T) {
	t.Parallel()
	s := listen(t)
	log := waitingLog{make(lines, 100), make(chan struct{}, 1), make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	worker := qsidecar.Worker{
		Queues: []string{"q"}, Options: qsidecar.Options{Socket: s.socket}, Logger: slog.New(log),
		Handler: func(context.Context, *qsidecar.Job) error { return nil },
	}
	end := later(func() (struct{}, error) { return struct{}{}, worker.Run(ctx) })
	w := &worked{peer: s.accept(), stop: stop, end: end}
	w.expect(protocol.OpClaim)
	s.down()
	w.close()
	testwait.Until(t, "the log handler waits", func() bool { return len(log.begun) > 0 })
	s.up()
	w.peer = s.accept()
	close(log.done)
	log.want(t, "INFO qsidecar: worker started", "WARN qsidecar: can't claim jobs", "WARN qsidecar: jobs can be claimed again")
	w.stopped()
	log.want(t, "INFO qsidecar: worker stopping", "INFO qsidecar: worker stopped")
}

// TestWorkerLogsThatItStops checks that the end of Run's context is logged while a job still runs.
func TestWorkerLogsThatItStops(t *testing.T) {
	t.Parallel()
	begun, gate := make(chan struct{}), make(chan struct{})
	_, w, log := logged(t, qsidecar.Worker{Handler: func(context.Context, *qsidecar.Job) error {
		close(begun)
		<-gate
		return nil
	}})
	w.jobs(w.expect(protocol.OpClaim), "L1")
	testwait.Closed(t, "the job runs", begun)
	w.stop()
	log.want(t, "INFO qsidecar: worker started", "INFO qsidecar: worker stopping running_jobs=1")
	close(gate)
	w.settled(w.expect(protocol.OpAck), "acked", 1)
	w.stopped()
	log.want(t, "INFO qsidecar: worker stopped")
}

// TestWorkerLogsWhereAHandlerPanicked checks that the stack of a panic begins with the handler.
func TestWorkerLogsWhereAHandlerPanicked(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]qsidecar.Handler{
		"a value":       func(context.Context, *qsidecar.Job) error { panic("boom") },
		"a nil pointer": func(context.Context, *qsidecar.Job) error { noJob().Result = nil; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := work(t, qsidecar.Worker{Handler: handler})
			w.jobs(w.expect(protocol.OpClaim), "L1")
			req := w.expect(protocol.OpNack)
			var frames []string
			for line := range strings.Lines(req.Error) {
				if !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "runtime.") { // runtime.panicmem and runtime.sigpanic
					frames = append(frames, line)
				}
			}
			if len(frames) < 2 || !strings.Contains(frames[1], "TestWorkerLogsWhereAHandlerPanicked") {
				t.Errorf("the error is\n%s\nwant the handler's frame first", req.Error)
			}
			w.settled(req, "nacked", 1)
			w.stopped()
		})
	}
}

func noJob() *qsidecar.Job { return nil }
