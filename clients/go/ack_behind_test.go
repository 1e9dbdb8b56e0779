package qsidecar_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// behind is a Worker in a synctest bubble, on a fake sidecar whose connections are pipes.
type behind struct {
	*worked
	peers <-chan *peer

	mu    sync.Mutex
	dead  bool     // no sidecar listens
	begun []string // leases
	log   strings.Builder
	lost  []string
}

// workBehind starts a Worker whose jobs take no time, and accepts its connection.
func workBehind(t *testing.T, w qsidecar.Worker) *behind {
	t.Helper()
	peers := make(chan *peer, 8)
	b := &behind{peers: peers}
	w.Queues = []string{"q"}
	handler := w.Handler
	w.Handler = func(ctx context.Context, j *qsidecar.Job) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.begun = append(b.begun, j.Lease); handler != nil {
			return handler(ctx, j)
		}
		return nil
	}
	w.Logger = slog.New(slog.NewTextHandler(b, nil))
	w.Options.OnLost = func(leases []string, _ string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lost = append(b.lost, leases...)
	}
	w.Options.Dial = func(context.Context) (net.Conn, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.dead {
			return nil, syscall.ECONNREFUSED
		}
		near, far := net.Pipe()
		p := &peer{t: t, conn: far, in: protocol.NewReader(far, 1<<20)}
		go func() {
			if hello, err := p.next(); err == nil && p.welcome(hello) == nil {
				peers <- p
			}
		}()
		return near, nil
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	end := later(func() (struct{}, error) { return struct{}{}, w.Run(ctx) })
	b.worked = &worked{peer: <-peers, stop: stop, end: end}
	return b
}

func (b *behind) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

// state waits until nothing in the bubble can go on, and returns the leases of the jobs that have begun.
func (b *behind) state() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.begun)
}

// logged returns the lines of the log about a job, without their time.
func (b *behind) logged(job string) (lines []string) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.log.String()) {
		if _, text, _ := strings.Cut(line, "level="); strings.Contains(text, "job="+job+" ") {
			lines = append(lines, strings.TrimSpace(text))
		}
	}
	return lines
}

// run lets a job begin and returns its ack, which isn't answered, and the next claim.
func (b *behind) run(claim *protocol.Request, lease string) (ack, next *protocol.Request) {
	b.t.Helper()
	b.jobs(claim, lease)
	ack = b.expect(protocol.OpAck)
	if ack.Lease != lease || ack.Claim != nil {
		b.t.Fatalf("it sent %+v, want an ack of %s without a claim", ack, lease)
	}
	return ack, b.expect(protocol.OpClaim)
}

func (b *behind) acked(req *protocol.Request) { b.t.Helper(); b.settled(req, "acked", 1) }

// The next job begins before the ack of the one before is answered.
func TestNextJobBeginsBeforeTheAck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{})
		first, claim := w.run(w.expect(protocol.OpClaim), "L1")
		if claim.WaitMS == 0 {
			t.Error("the claim does not wait")
		}
		second, claim := w.run(claim, "L2")
		if got := w.state(); !slices.Equal(got, []string{"L1", "L2"}) {
			t.Errorf("%v have begun, want L1 and L2", got)
		}
		w.acked(second)
		w.acked(first)
		w.jobs(claim)
		w.stopped()
	})
}

// The reply to an ack without a claim has no join, and changes nothing about that of the claim before.
func TestJoinIsThatOfTheLastClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		w := workBehind(t, qsidecar.Worker{Handler: func(_ context.Context, j *qsidecar.Job) error {
			if j.Lease == "L2" {
				<-finish
			}
			return nil
		}})
		ack, claim := w.run(w.expect(protocol.OpClaim), "L1")
		w.join = true
		w.jobs(claim, "L2")
		w.join = false
		synctest.Wait()
		w.acked(ack)
		synctest.Wait()
		close(finish)
		second := w.expect(protocol.OpAck)
		if second.Claim == nil {
			t.Error("the second ack does not claim")
		}
		w.jobs(second)
		w.jobs(w.expect(protocol.OpClaim))
		w.stopped()
	})
}

// No job begins while 32 are not settled, or twice as many as run at once.
func TestWorkerLimitsUnansweredSettles(t *testing.T) {
	t.Parallel()
	for concurrency, most := range map[int]int{1: 32, 16: 32, 20: 40} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := workBehind(t, qsidecar.Worker{Concurrency: concurrency})
				var claims, acks []*protocol.Request
				for range concurrency {
					claims = append(claims, w.expect(protocol.OpClaim))
				}
				for i := range most {
					w.jobs(claims[0], fmt.Sprintf("L%d", i))
					acks = append(acks, w.expect(protocol.OpAck))
					if claims = claims[1:]; i < most-1 {
						claims = append(claims, w.expect(protocol.OpClaim))
					}
				}
				w.quiet() // no claim follows the last ack
				for i, c := range claims {
					w.jobs(c, fmt.Sprintf("M%d", i))
				}
				if n := len(w.state()); n != most {
					t.Errorf("%d jobs began while no settle was answered, want %d", n, most)
				}
				w.acked(acks[0])
				if concurrency == 1 {
					w.jobs(w.expect(protocol.OpClaim), "last")
				}
				req, err := w.next()
				if err == nil && req.Op == protocol.OpClaim { // one that waited to claim saw the answer first
					req, err = w.next()
				}
				if err != nil || req.Op != protocol.OpAck {
					t.Fatalf("it sent %+v (%v), want an ack", req, err)
				}
				acks = append(acks[1:], req)
				if n := len(w.state()); n != most+1 {
					t.Errorf("%d jobs have begun after one answer, want %d", n, most+1)
				}
				w.finish(acks)
			})
		})
	}
}

// No job begins while a settle is unanswered for a second. The job that was claimed in that second begins later.
func TestWorkerWaitsForAnOldSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{})
		ack, claim := w.run(w.expect(protocol.OpClaim), "L1")
		time.Sleep(999 * time.Millisecond)
		second, claim := w.run(claim, "L2")
		time.Sleep(time.Millisecond)
		w.jobs(claim, "L3")
		w.quiet()
		w.acked(second) // L1 is still unanswered
		w.quiet()
		if got := w.state(); !slices.Equal(got, []string{"L1", "L2"}) {
			t.Errorf("%v began while the ack of L1 was unanswered for a second", got)
		}
		w.acked(ack)
		third := w.expect(protocol.OpAck)
		w.acked(third)
		w.jobs(w.expect(protocol.OpClaim))
		w.stopped()
	})
}

// A job whose lease is lost while it waits to begin does not begin: another worker can have it.
func TestJobThatIsLostWhileItWaitsDoesNotBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{})
		ack, claim := w.run(w.expect(protocol.OpClaim), "L1")
		time.Sleep(time.Second)
		w.jobs(claim, "L2")
		w.quiet()
		w.send(&protocol.Reply{Event: protocol.EventLost, Lost: []string{"L2"}})
		w.acked(ack)
		w.jobs(w.expect(protocol.OpClaim)) // and no settle of L2 before it
		w.stopped()
		if got := w.state(); !slices.Equal(got, []string{"L1"}) {
			t.Errorf("%v have begun, want L1", got)
		}
		if got, want := w.logged("jL2"), `WARN msg="qsidecar: the job's lease was lost before it began: another worker can have it" job=jL2 queue=q attempt=1`; !slices.Equal(got, []string{want}) {
			t.Errorf("the log has %q, want %s", got, want)
		}
		if !slices.Equal(w.lost, []string{"L2"}) {
			t.Errorf("OnLost was called with %v, want L2", w.lost)
		}
	})
}

// A settle that the client repeats during an outage counts as unanswered.
func TestRepeatedSettleCountsAsUnanswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{})
		ack, claim := w.run(w.expect(protocol.OpClaim), "L1")
		for range 5 {
			w.refuse(ack, protocol.CodeUnavailable, 300*time.Millisecond)
			ack = w.expect(protocol.OpAck)
		}
		w.jobs(claim, "L2")
		w.quiet()
		w.acked(ack)
		w.acked(w.expect(protocol.OpAck))
		w.jobs(w.expect(protocol.OpClaim))
		w.stopped()
		if got := w.state(); !slices.Equal(got, []string{"L1", "L2"}) {
			t.Errorf("%v have begun", got)
		}
	})
}

// A worker that stops, or that was stopped while a job waits to begin, waits for its settles. It returns that job.
func TestStoppedWorkerWaitsForItsSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{})
		ack, claim := w.run(w.expect(protocol.OpClaim), "L1")
		time.Sleep(time.Second)
		w.jobs(claim, "L2")
		w.quiet()
		w.stop()
		back := w.expect(protocol.OpNack)
		if back.Lease != "L2" || !back.Snooze {
			t.Errorf("it sent %+v, want L2 snoozed", back)
		}
		w.settled(back, "nacked", 1)
		w.quiet()
		w.refuse(ack, protocol.CodeUnavailable, time.Second)
		ack = w.expect(protocol.OpAck)
		select {
		case <-w.end.done:
			t.Error("Run returned although an ack is unanswered")
		default:
		}
		w.acked(ack)
		w.stopped()
	})
}

// die ends the sidecar. No other one starts.
func (b *behind) die() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = true
	b.close()
}

// If the sidecar is killed and does not come back, a worker that drains or stops ends a minute after the oldest settle
// without an answer.
func TestEndOfAWorkerWithoutASidecar(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		worker  qsidecar.Worker
		stopped bool
	}{
		"drain":          {worker: qsidecar.Worker{Drain: true}},
		"drain, SyncAck": {worker: qsidecar.Worker{Drain: true, SyncAck: true}},
		"stop":           {stopped: true},
		"stop, SyncAck":  {worker: qsidecar.Worker{SyncAck: true}, stopped: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := workBehind(t, c.worker)
				w.jobs(w.expect(protocol.OpClaim), "L1")
				w.expect(protocol.OpAck)
				began := time.Now()
				time.Sleep(2 * time.Second) // with SyncAck, this is the only settle
				w.die()
				if c.stopped {
					time.Sleep(30 * time.Second)
					w.stop()
				}
				_, err := w.end.wait(t)
				if took := time.Since(began).Round(time.Second); took < time.Minute || took > 70*time.Second {
					t.Errorf("it ended %v after the settle, want a minute", took)
				}
				var unanswered *qsidecar.UnansweredError
				if !errors.As(err, &unanswered) || unanswered.Jobs != 1 || !qsidecar.IsCode(err, protocol.CodeUnavailable) {
					t.Errorf("Run: %v, want an UnansweredError", err)
				}
				if got, want := w.logged("jL1"), `ERROR msg="qsidecar: the job could not be settled: no answer from the sidecar" job=jL1 queue=q attempt=1`; len(got) == 0 || got[len(got)-1] != want {
					t.Errorf("the log has %q, want %s", got, want)
				}
			})
		})
	}
}

// A worker that neither drains nor stops waits for its sidecar. When it is stopped, it doesn't wait for a settle that is
// already unanswered for a minute.
func TestRunningWorkerWaitsForItsSidecar(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{})
		w.run(w.expect(protocol.OpClaim), "L1")
		w.die()
		time.Sleep(time.Hour)
		select {
		case <-w.end.done:
			t.Error("Run returned")
		default:
		}
		w.stop()
		stopped := time.Now()
		if _, err := w.end.wait(t); !qsidecar.IsCode(err, protocol.CodeUnavailable) {
			t.Errorf("Run: %v, want an UnansweredError", err)
		}
		if took := time.Since(stopped); took > 10*time.Second {
			t.Errorf("it ended %v after the stop", took)
		}
	})
}

// A database that stays away ends a worker that stops, like a sidecar that stays away.
func TestEndOfAWorkerWithoutADatabase(t *testing.T) {
	t.Parallel()
	for name, retry := range map[string]time.Duration{"default": 0, "no Retry": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := workBehind(t, qsidecar.Worker{Options: qsidecar.Options{Retry: retry}})
				ack, claim := w.run(w.expect(protocol.OpClaim), "L1")
				began := time.Now()
				w.stop()
				w.expect(protocol.OpCancelClaim)
				w.jobs(claim)
				tries := 0
				for ; ack.Op == protocol.OpAck; tries++ {
					w.refuse(ack, protocol.CodeUnavailable, time.Second)
					ack = w.expect(ack.Op)
					if time.Since(began) > 55*time.Second {
						break
					}
				}
				if tries > 200 {
					t.Errorf("it sent the ack %d times", tries)
				}
				go func() {
					for {
						if _, err := w.next(); err != nil {
							return
						}
					}
				}()
				if _, err := w.end.wait(t); !qsidecar.IsCode(err, protocol.CodeUnavailable) {
					t.Errorf("Run: %v, want an UnansweredError", err)
				}
			})
		})
	}
}

// A claim without a job ends a worker with Drain only if no settle was unanswered when it was sent: an ack can
// store follow-up jobs.
func TestDrainWaitsForItsSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{Drain: true})
		ack, claim := w.run(w.expect(protocol.OpClaim), "L1")
		w.jobs(claim)
		w.quiet()
		w.acked(ack)
		ack, claim = w.run(w.expect(protocol.OpClaim), "followed")
		w.fail(claim, protocol.CodeBusy) // this connection has as many jobs as it can
		w.quiet()
		w.acked(ack)
		w.jobs(w.expect(protocol.OpClaim))
		w.ended()
		if _, err := w.end.wait(t); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// What a settle behind the worker finds is in the log with the job's id. A lost lease is reported to OnLost too,
// unless the settle was sent twice.
func TestSettlesBehindAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{})
		refused, claim := w.run(w.expect(protocol.OpClaim), "refused")
		lost, claim := w.run(claim, "lost")
		internal, claim := w.run(claim, "internal")
		w.fail(refused, protocol.CodeBadRequest)
		nack := w.expect(protocol.OpNack)
		if got, want := outcome(nack), `nack refused "" 0 "bad_request: error of the test" - false false`; got != want {
			t.Errorf("it sent %s, want %s", got, want)
		}
		w.settled(nack, "nacked", 1)
		w.fail(lost, protocol.CodeLeaseLost)
		w.fail(internal, protocol.CodeInternal)
		w.fail(w.expect(protocol.OpAck), protocol.CodeLeaseLost)
		for job, want := range map[string]string{
			"jrefused":  `ERROR msg="qsidecar: the job's outcome was refused, so the attempt has failed" job=jrefused queue=q attempt=1 error="bad_request: error of the test"`,
			"jlost":     `WARN msg="qsidecar: the job could not be settled: its lease was lost" job=jlost queue=q attempt=1`,
			"jinternal": `INFO msg="qsidecar: the job was settled by an earlier try, or was lost" job=jinternal queue=q attempt=1`,
		} {
			lines := w.logged(job)
			if len(lines) == 0 || lines[len(lines)-1] != want {
				t.Errorf("the log has %q, want %s at its end", lines, want)
			}
		}
		w.jobs(claim)
		w.stopped()
		if !slices.Equal(w.lost, []string{"lost"}) {
			t.Errorf("OnLost was called with %v, want lost", w.lost)
		}
	})
}

// Settles under way are sent again on the next connection. One that the first connection carried out is not
// reported as lost, also if the database is away in between.
func TestSettlesBehindSurviveAReconnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := workBehind(t, qsidecar.Worker{})
		claim := w.expect(protocol.OpClaim)
		for _, l := range []string{"L1", "L2", "L3"} {
			_, claim = w.run(claim, l)
		}
		w.close()
		w.peer = <-w.peers
		open := make(map[string]*protocol.Request)
		for range 4 { // the acks and the claim: no lease is bound while its ack is under way
			req, err := w.next()
			if err != nil {
				t.Fatal(err)
			}
			open[string(req.Op)+req.Lease] = req
		}
		w.acked(open["ackL1"])
		w.fail(open["ackL2"], protocol.CodeLeaseLost)
		w.refuse(open["ackL3"], protocol.CodeUnavailable, time.Millisecond)
		bind := w.expect(protocol.OpExtend)
		if !slices.Equal(bind.Leases, []string{"L3"}) {
			t.Errorf("bound %v, want the lease whose ack failed", bind.Leases)
		}
		w.settled(bind, "extended", 1)
		w.fail(w.expect(protocol.OpAck), protocol.CodeLeaseLost)
		w.jobs(open["claim"])
		w.stopped()
		for job, want := range map[string]int{"jL1": 0, "jL2": 1, "jL3": 1} {
			lines := w.logged(job)
			if len(lines) != want || want > 0 && !strings.HasPrefix(lines[0], `INFO msg="qsidecar: the job was settled by an earlier try, or was lost"`) {
				t.Errorf("the log has %q", lines)
			}
		}
		if len(w.lost) > 0 {
			t.Errorf("%v are reported as lost", w.lost)
		}
	})
}

// A handler can use the memory of its result and of its follow-up jobs again: the settles have copies.
func TestSettlesBehindHaveCopies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		buf, headers := make([]byte, 2), make(map[string]string)
		w := workBehind(t, qsidecar.Worker{Handler: func(_ context.Context, j *qsidecar.Job) error {
			copy(buf, j.Lease)
			headers["of"] = j.Lease
			j.Result, j.Then = buf, []protocol.NewJob{{Queue: "next", Payload: buf, Headers: headers}}
			return nil
		}})
		_, claim := w.run(w.expect(protocol.OpClaim), "L1")
		w.run(claim, "L2")
		w.close()
		w.peer = <-w.peers
		for range 4 { // two acks, the claim and the bind of their leases
			req, err := w.next()
			if err != nil {
				t.Fatal(err)
			}
			switch req.Op {
			case protocol.OpAck:
				then := req.Enqueue[0]
				if l := req.Lease; string(req.Result) != l || string(then.Payload) != l || then.Headers["of"] != l {
					t.Errorf("the ack of %s has the result %s and the follow-up job %s of %s", l, req.Result, then.Payload, then.Headers["of"])
				}
				w.acked(req)
			case protocol.OpClaim:
				w.jobs(req)
			default:
				w.settled(req, "extended", 2)
			}
		}
		w.stopped()
	})
}

// A worker that ran 10,000 jobs, or in a soak 100,000, has no more goroutines, and no more memory, than one that ran a few. The results of 9,000 jobs
// with their leases are more than what the heap can grow by.
func TestManySettlesBehindKeepNothing(t *testing.T) {
	jobs, few := 10_000, 1_000
	if os.Getenv("QSIDECAR_SOAK") != "" {
		jobs = 100_000
	}
	w := work(t, qsidecar.Worker{Concurrency: 4, Handler: func(_ context.Context, j *qsidecar.Job) error {
		j.Result = make([]byte, 300)
		return nil
	}})
	var before, after runtime.MemStats
	goroutines := 0
	for n := 0; n < jobs; {
		req, err := w.next()
		if err != nil {
			t.Fatal(err)
		}
		if req.Op == protocol.OpAck {
			w.settled(req, "acked", 1)
			continue
		}
		if n++; n == few {
			runtime.GC()
			runtime.ReadMemStats(&before)
			goroutines = runtime.NumGoroutine()
		}
		w.jobs(req, fmt.Sprint(n))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := runtime.NumGoroutine(); n > goroutines+4 { // each handler has one while it runs
		t.Errorf("%d goroutines, %d after %d jobs", n, goroutines, few)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 2<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	w.finish([]*protocol.Request{})
}
