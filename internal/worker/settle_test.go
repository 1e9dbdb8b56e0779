package worker

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestSettleAfterAnInternalError checks that a job that was run is acked although the sidecar
// answers an ack with an internal error. A nack would run it again.
func TestSettleAfterAnInternalError(t *testing.T) {
	got := make(chan protocol.Request, 10)
	internal := &protocol.Reply{Error: protocol.Errorf(protocol.CodeInternal, "error of the test")}
	w := New(Options{Queues: []string{"q"}, Stderr: t.Output()})
	w.client = dialFake(t, got,
		&protocol.Reply{Error: internal.Error, Jobs: []protocol.Job{{ID: "2", Queue: "q", Lease: "2.next"}}}, internal,
		&protocol.Reply{OK: true, Settled: &protocol.Settled{Verb: "acked", Count: 1}})
	w.settler = qsidecar.NewSettler(t.Context(), w.client, 1)
	req := done().request
	req.Lease, req.Claim = "1.mine", &protocol.NextClaim{Queues: w.opts.Queues}
	next, err := w.settle(t.Context(), t.Context(), &settling{job: protocol.Job{ID: "1", Queue: "q", Lease: "1.mine"}, request: req})
	if err != nil || len(next) != 1 || next[0].ID != "2" {
		t.Errorf("settled with %v, and claimed %+v", err, next)
	}
	for tries := range 3 {
		sent := testwait.Receive(t, "an ack", got)
		if sent.Op != protocol.OpAck || sent.Lease != "1.mine" || (sent.Claim != nil) != (tries == 0) {
			t.Errorf("try %d: %s of %s, claim %+v", tries+1, sent.Op, sent.Lease, sent.Claim)
		}
	}
}

// dialFake returns a client of a sidecar that sends these replies, and each request to got.
func dialFake(t *testing.T, got chan<- protocol.Request, replies ...*protocol.Reply) *qsidecar.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			err = serveFake(conn, got, replies)
		}
		served <- errors.Join(err, ln.Close())
	}()
	c, err := qsidecar.Dial(t.Context(), qsidecar.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return c
}

// serveFake answers hello and then each request with the next reply.
func serveFake(conn net.Conn, got chan<- protocol.Request, replies []*protocol.Reply) error {
	in := protocol.NewReader(conn, 1<<20)
	hello := &protocol.Reply{OK: true, Hello: &protocol.HelloReply{Version: 1, Server: "fake", Session: "s", MaxFrame: 1 << 16}}
	for i, rep := range append([]*protocol.Reply{hello}, replies...) {
		body, codec, err := in.Next()
		if err != nil {
			return err
		}
		var req protocol.Request
		if err := codec.DecodeRequest(body, protocol.NewLimits(1<<20), &req); err != nil {
			return err
		}
		if i > 0 {
			got <- req
		}
		answer := *rep
		answer.ID = req.ID
		if _, err := conn.Write(protocol.Msgpack.AppendReply(nil, &answer)); err != nil {
			return err
		}
	}
	return nil
}
