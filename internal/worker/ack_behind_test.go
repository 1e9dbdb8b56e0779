package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// behind is a worker in a synctest bubble, on a fake sidecar. Its jobs take no time.
type behind struct {
	*Worker
	t        *testing.T
	conn     net.Conn
	requests chan *protocol.Request
	stop     context.CancelFunc
	ended    chan error

	untilLost bool // a job ends with its lease

	mu    sync.Mutex
	begun []string // ids
	log   strings.Builder
}

func (b *behind) run(ctx context.Context, job protocol.Job) outcome {
	if b.untilLost {
		<-ctx.Done()
		return outcome{reason: context.Cause(ctx).Error()}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun = append(b.begun, job.ID)
	return done()
}

func (b *behind) close() {}

func (b *behind) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(p)
}

// workBehind starts a worker.
func workBehind(t *testing.T, o Options) *behind {
	t.Helper()
	b := &behind{t: t, requests: make(chan *protocol.Request, 100), ended: make(chan error, 1)}
	o.Queues, o.Stderr = []string{"q"}, b
	o.WithTimeout = context.WithTimeout
	o.TryAgain = func(error) bool { return true }
	b.Worker = New(o)
	b.newRunner = func() runner { return b }
	near, far := net.Pipe()
	b.conn = far
	go b.read()
	var err error
	dial := func(context.Context) (conn net.Conn, err error) {
		if conn, near = near, nil; conn == nil {
			err = syscall.ECONNREFUSED
		}
		return conn, err
	}
	b.client, err = qsidecar.Dial(t.Context(), qsidecar.Options{Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.client.Close() })
	ctx, stop := context.WithCancel(t.Context())
	b.settler = qsidecar.NewSettler(context.WithoutCancel(ctx), b.client, o.Jobs)
	b.stop = stop
	go func() { b.ended <- b.runJobs(ctx, context.WithoutCancel(ctx)) }()
	return b
}

// read answers hello, and passes on the other requests.
func (b *behind) read() {
	in := protocol.NewReader(b.conn, 1<<20)
	for {
		body, codec, err := in.Next()
		if err != nil {
			return
		}
		req := new(protocol.Request)
		if err := codec.DecodeRequest(body, protocol.NewLimits(1<<20), req); err != nil {
			b.t.Error(err)
		}
		if req.Op == protocol.OpHello {
			b.reply(req, &protocol.Reply{OK: true, Hello: &protocol.HelloReply{Version: 1, MaxFrame: 1 << 16}})
			continue
		}
		b.requests <- req
	}
}

func (b *behind) reply(req *protocol.Request, rep *protocol.Reply) {
	rep.ID = req.ID
	_, _ = b.conn.Write(protocol.Msgpack.AppendReply(nil, rep)) // a client that is closed reads no more
}

// expect returns the next request, which must be of that op.
func (b *behind) expect(op protocol.Op) *protocol.Request {
	b.t.Helper()
	synctest.Wait()
	select {
	case req := <-b.requests:
		if req.Op != op {
			b.t.Fatalf("the worker sent %+v, want %s", req, op)
		}
		return req
	default:
		b.t.Fatalf("the worker sent nothing, want %s", op)
		return nil
	}
}

// quiet checks that the worker sends nothing now, and that it goes on.
func (b *behind) quiet() {
	b.t.Helper()
	synctest.Wait()
	select {
	case req := <-b.requests:
		b.t.Fatalf("the worker sent %+v, want nothing", req)
	case err := <-b.ended:
		b.t.Fatalf("the worker ended: %v", err)
	default:
	}
}

func (b *behind) jobs(req *protocol.Request, ids ...string) {
	rep := &protocol.Reply{OK: true, Jobs: []protocol.Job{}}
	for _, id := range ids {
		rep.Jobs = append(rep.Jobs, protocol.Job{ID: id, Queue: "q", Lease: "L" + id, Attempt: 1, MaxAttempts: 20})
	}
	b.reply(req, rep)
}

func (b *behind) settled(req *protocol.Request) {
	b.reply(req, &protocol.Reply{OK: true, Settled: &protocol.Settled{Verb: req.Op.Verb(), Count: 1, Lost: []string{}}})
}

func (b *behind) fail(req *protocol.Request, code protocol.Code) {
	b.reply(req, &protocol.Reply{Error: protocol.Errorf(code, "error of the test")})
}

// end checks that the worker returns.
func (b *behind) end() error {
	b.t.Helper()
	synctest.Wait()
	select {
	case err := <-b.ended:
		return err
	default:
		b.t.Fatal("the worker goes on")
		return nil
	}
}

// TestNextJobBeginsBeforeTheAck checks that a runner begins jobs while acks are unanswered, but no more than 32,
// and that the worker waits for the acks when it stops.
func TestNextJobBeginsBeforeTheAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := workBehind(t, Options{Jobs: 1})
		claim := b.expect(protocol.OpClaim)
		var acks []*protocol.Request
		for i := range 32 {
			b.jobs(claim, fmt.Sprint(i))
			ack := b.expect(protocol.OpAck)
			if ack.Claim != nil || ack.Lease != fmt.Sprintf("L%d", i) {
				t.Fatalf("it sent %+v, want the ack of %d without a claim", ack, i)
			}
			if acks = append(acks, ack); i < 31 {
				claim = b.expect(protocol.OpClaim)
			}
		}
		b.quiet()
		b.settled(acks[0])
		if claim = b.expect(protocol.OpClaim); claim.WaitMS != 0 {
			t.Errorf("the claim of a runner waits %d ms", claim.WaitMS)
		}
		b.jobs(claim)
		if claim = b.expect(protocol.OpClaim); claim.WaitMS == 0 {
			t.Error("the claim of idle runners does not wait")
		}
		b.stop()
		b.reply(b.expect(protocol.OpCancelClaim), &protocol.Reply{OK: true})
		b.jobs(claim)
		for _, ack := range acks[1:] {
			b.quiet()
			b.settled(ack)
		}
		if err := b.end(); err != nil {
			t.Error(err)
		}
	})
}

// TestNoJobBeginsAfterASecond checks that a runner with a job waits while an ack is unanswered for a second, and
// gives the job back if the worker stops.
func TestNoJobBeginsAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := workBehind(t, Options{Jobs: 1})
		b.jobs(b.expect(protocol.OpClaim), "1")
		ack := b.expect(protocol.OpAck)
		claim := b.expect(protocol.OpClaim)
		time.Sleep(time.Second)
		b.jobs(claim, "2")
		b.quiet()
		b.stop()
		back := b.expect(protocol.OpNack)
		if !slices.Equal(back.Leases, []string{"L2"}) || !back.Snooze {
			t.Errorf("it sent %+v, want job 2 snoozed", back)
		}
		b.settled(back)
		b.quiet()
		b.settled(ack)
		if err := b.end(); err != nil || !slices.Equal(b.begun, []string{"1"}) {
			t.Errorf("it ran %v, and ended with %v", b.begun, err)
		}
	})
}

// TestEndWithoutASidecar checks that a worker that drains or stops ends a minute after the oldest settle without an
// answer, if the sidecar is killed and does not come back.
func TestEndWithoutASidecar(t *testing.T) {
	for name, c := range map[string]struct {
		options Options
		stopped bool
	}{
		"drain":          {options: Options{Drain: true}},
		"drain, SyncAck": {options: Options{Drain: true, SyncAck: true}},
		"once":           {options: Options{Once: true}},
		"stop":           {stopped: true},
		"stop, SyncAck":  {options: Options{SyncAck: true}, stopped: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.options.Jobs = 1
				b := workBehind(t, c.options)
				b.jobs(b.expect(protocol.OpClaim), "1")
				b.expect(protocol.OpAck)
				began := time.Now()
				time.Sleep(2 * time.Second)
				b.conn.Close()
				if c.stopped {
					time.Sleep(30 * time.Second)
					b.stop()
				}
				err := <-b.ended
				if took := time.Since(began).Round(time.Second); took < time.Minute || took > 70*time.Second {
					t.Errorf("it ended %v after the settle, want a minute", took)
				}
				var unanswered *qsidecar.UnansweredError
				if !errors.As(err, &unanswered) || unanswered.Jobs != 1 {
					t.Errorf("it ended with %v, want an UnansweredError", err)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if got, want := b.log.String(), "qsidecar: job 1 of q could not be settled: no answer from the sidecar\n"; got != want {
					t.Errorf("the log has\n%swant\n%s", got, want)
				}
			})
		})
	}
}

// TestLossNearTheTimeLimit checks that the log names the time limit only if the lease was lost near it: within 100 ms, or
// within half of a short limit.
func TestLossNearTheTimeLimit(t *testing.T) {
	for _, c := range []struct {
		limit, took time.Duration
		want        string
	}{
		{time.Second, 900 * time.Millisecond, errJobLost.Error()},
		{time.Second, 901 * time.Millisecond, "it ran longer than its time limit of 1s and was stopped"},
		{50 * time.Millisecond, 25 * time.Millisecond, errJobLost.Error()},
		{50 * time.Millisecond, 26 * time.Millisecond, "it ran longer than its time limit of 50ms and was stopped"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := workBehind(t, Options{Jobs: 1, Drain: true})
			b.untilLost = true
			job := protocol.Job{ID: "1", Queue: "q", Lease: "L1", Attempt: 1, MaxAttempts: 20, TimeoutMS: protocol.Some(c.limit.Milliseconds())}
			b.reply(b.expect(protocol.OpClaim), &protocol.Reply{OK: true, Jobs: []protocol.Job{job}})
			synctest.Wait()
			time.Sleep(c.took)
			b.LostLeases([]string{"L1"}, "")
			b.jobs(b.expect(protocol.OpClaim))
			if err := b.end(); err != nil {
				t.Error(err)
			}
			if got, want := b.log.String(), "qsidecar: job 1 of q, attempt 1 of 20: "+c.want+"\n"; got != want {
				t.Errorf("after %v of %v, the log has\n%swant\n%s", c.took, c.limit, got, want)
			}
		})
	}
}

// TestDrainSeesFollowUpJobs checks that with Options.Drain a claim without a job ends the worker only if no ack was
// unanswered when it was sent.
func TestDrainSeesFollowUpJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := workBehind(t, Options{Jobs: 1, Drain: true})
		b.jobs(b.expect(protocol.OpClaim), "1")
		ack, claim := b.expect(protocol.OpAck), b.expect(protocol.OpClaim)
		b.jobs(claim)
		b.quiet()
		b.settled(ack)
		b.jobs(b.expect(protocol.OpClaim), "followed")
		ack, claim = b.expect(protocol.OpAck), b.expect(protocol.OpClaim)
		b.fail(claim, protocol.CodeBusy) // this connection has as many jobs as it can
		b.quiet()
		b.settled(ack)
		b.jobs(b.expect(protocol.OpClaim))
		if err := b.end(); err != nil || !slices.Equal(b.begun, []string{"1", "followed"}) {
			t.Errorf("it ran %v, and ended with %v", b.begun, err)
		}
	})
}

// TestSettlesBehindAreReported checks what the worker does if a settle behind it fails. A fatal error ends the worker.
func TestSettlesBehindAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := workBehind(t, Options{Jobs: 1})
		claim := b.expect(protocol.OpClaim)
		acks := make(map[string]*protocol.Request)
		for _, id := range []string{"refused", "lost", "internal", "fatal"} {
			b.jobs(claim, id)
			acks[id] = b.expect(protocol.OpAck)
			claim = b.expect(protocol.OpClaim)
		}
		b.fail(acks["refused"], protocol.CodeBadRequest)
		nack := b.expect(protocol.OpNack)
		if nack.Lease != "Lrefused" || nack.Error != "the job was done, but: bad_request: error of the test" {
			t.Errorf("it sent %+v, want a failed attempt", nack)
		}
		b.settled(nack)
		b.fail(acks["lost"], protocol.CodeLeaseLost)
		b.quiet() // so that the log is in this order
		b.fail(acks["internal"], protocol.CodeInternal)
		synctest.Wait()
		time.Sleep(time.Second) // the pause before the next try
		b.fail(b.expect(protocol.OpAck), protocol.CodeLeaseLost)
		b.quiet()
		b.fail(acks["fatal"], protocol.CodeForbidden)
		b.fail(b.expect(protocol.OpNack), protocol.CodeForbidden)
		b.jobs(claim)
		if err := b.end(); !qsidecar.IsCode(err, protocol.CodeForbidden) || !strings.Contains(err.Error(), "job fatal of q could not be settled") {
			t.Errorf("it ended with %v", err)
		}
		want := `qsidecar: job refused of q: bad_request: error of the test
qsidecar: job lost of q: lease_lost: error of the test
qsidecar: job internal of q could not be settled yet: internal: error of the test
qsidecar: job internal of q was settled by an earlier try, or was lost
qsidecar: job fatal of q: forbidden: error of the test
`
		if got := b.log.String(); got != want {
			t.Errorf("the log has\n%swant\n%s", got, want)
		}
	})
}

// TestWorkerClaimsWithItsSettle checks that the settle has the claim with SyncAck, and if the sidecar asks for it.
func TestWorkerClaimsWithItsSettle(t *testing.T) {
	for name, sync := range map[string]bool{"SyncAck": true, "join": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := workBehind(t, Options{Jobs: 1, SyncAck: sync})
				job := protocol.Job{ID: "1", Queue: "q", Lease: "L1", Attempt: 1, MaxAttempts: 20}
				b.reply(b.expect(protocol.OpClaim), &protocol.Reply{OK: true, Join: !sync, Jobs: []protocol.Job{job}})
				ack := b.expect(protocol.OpAck)
				if ack.Claim == nil {
					t.Fatal("the ack does not claim")
				}
				b.quiet()
				job.ID, job.Lease = "2", "L2"
				b.reply(ack, &protocol.Reply{OK: true, Settled: &protocol.Settled{Verb: "acked", Count: 1}, Jobs: []protocol.Job{job}})
				ack = b.expect(protocol.OpAck)
				if (ack.Claim == nil) != !sync { // the last reply had no join
					t.Errorf("the second ack has the claim %+v", ack.Claim)
				}
				b.stop()
				b.settled(ack)
				if !sync {
					b.jobs(b.expect(protocol.OpClaim))
				}
				if err := b.end(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
