package clients

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestWorkersJoin runs the workers on a sidecar on which 300 other connections settle in one commit, and then none.
// While replies to claims have join, a worker sends its ack with the next claim. Before and after, it acks behind.
func TestWorkersJoin(t *testing.T) {
	for name, start := range clientlib.Workers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSite(t)
			sc := s.Start("a")
			c := sc.Dial()
			r := record(t, filepath.Join(s.Dir, "w.sock"), sc.Socket)
			w := start(t, sc)
			w.Env = append(w.Env, "QSIDECAR_SOCKET="+r.socket)
			w.Start()
			done := 0
			joins := func(crowd int) bool { // runs one job
				t.Helper()
				settleTogether(t, s, sc, c, crowd)
				done++
				testwait.Until(t, "the job's ack is sent", func() bool { return len(r.joined()) == done })
				w.WaitEmpty("quick")
				return r.joined()[done-1]
			}
			if joins(0) {
				t.Error("the ack had a claim before there was a crowd")
			}
			for range 2 {
				if !joins(300) {
					t.Error("the ack beside a crowd had no claim")
				}
				testwait.Until(t, "the worker acks behind again", func() bool { return !joins(0) })
				if joins(0) {
					t.Error("an ack had a claim after the crowd had left")
				}
			}
			w.Terminate()
		})
	}
}

// settleTogether lets so many connections settle a job each in one or two commits: they wait for a lock of the database. The last
// commit also stores a job for the worker: the sidecar forgets the crowd after about ten commits, and claims commit too.
func settleTogether(t *testing.T, s *kit.Site, sc *kit.Sidecar, c *kit.Conn, n int) {
	t.Helper()
	all := make([]*kit.Conn, n, n+1)
	requests := make([]kit.Msg, n, n+1)
	if n > 0 {
		sc.Dial().Enqueue("crowd", n)
	}
	for i := range n {
		all[i] = sc.Dial()
		requests[i] = kit.Msg{"op": "ack", "id": 1, "lease": all[i].ClaimOne("crowd").Lease}
	}
	all, requests = append(all, c), append(requests, kit.Msg{"op": "enqueue", "id": 1, "queue": "quick", "payload": "1"})
	lock, err := s.SQLite(t).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := lock.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	for i, c := range all {
		c.Post(requests[i], kit.Msg{"op": "ping", "id": 2})
	}
	for _, c := range all {
		if r := c.Next(); r.Error != nil { // to the ping, so the request was read
			t.Fatal(r.Error)
		}
	}
	if _, err := lock.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if r := c.Next(); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
}

// recorder is a socket that passes everything on to the sidecar, and notes the acks.
type recorder struct {
	socket string

	mu   sync.Mutex
	acks []bool // whether each has a claim
	err  error
}

// record listens until the test ends.
func record(t *testing.T, socket, sidecar string) *recorder {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{socket: socket}
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close() // ends the goroutine below
		all.Wait()
		if r.err != nil {
			t.Error(r.err)
		}
	})
	all.Go(func() {
		for {
			worker, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				err := r.pass(worker.(*net.UnixConn), sidecar)
				r.mu.Lock()
				defer r.mu.Unlock()
				r.err = errors.Join(r.err, err)
			})
		}
	})
	return r
}

// pass passes on both directions of a worker's connection.
func (r *recorder) pass(worker *net.UnixConn, sidecar string) error {
	defer worker.Close()
	conn, err := net.Dial("unix", sidecar)
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(worker, conn) // ends with either connection
		_ = worker.CloseWrite()
	}()
	in := protocol.NewReader(io.TeeReader(worker, conn), protocol.MaxMaxFrame)
	for {
		body, codec, err := in.Next()
		if err != nil {
			return nil // the worker ended
		}
		var req protocol.Request
		if err := codec.DecodeRequest(body, protocol.NewLimits(protocol.MaxMaxFrame), &req); err != nil {
			return err
		}
		if req.Op == protocol.OpAck {
			r.mu.Lock()
			r.acks = append(r.acks, req.Claim != nil)
			r.mu.Unlock()
		}
	}
}

// joined returns whether each ack had a claim.
func (r *recorder) joined() []bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.acks)
}
