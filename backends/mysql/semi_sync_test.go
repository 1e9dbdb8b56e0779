package mysql

import (
	"net"
	"testing"

	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestLostAnswerWaitsForSemiSyncReplica: the connection breaks while the source waits for its semi-synchronous replica. To interrupt the
// session would end that wait, and commit what no replica has. So the Store waits too, and answers when the replica has the job.
func TestLostAnswerWaitsForSemiSyncReplica(t *testing.T) {
	ownServers(t, func(t *testing.T, kind testserver.Kind) {
		r, address := newReplication(t, kind, true)
		dialed := make(chan bool, 1000)
		s := open(t, Options{URL: address, wrap: func(c net.Conn) net.Conn { dialed <- true; return c }})
		if err := enqueue(t, s); err != nil {
			t.Fatal(err)
		}
		replica := r.Nodes[1]
		must(t, replica, "", "STOP REPLICA IO_THREAD")
		commits := make(chan *session.Conn, 1)
		report := func(c *session.Conn, _ bool) {
			s.fault.Store(nil)
			commits <- c
		}
		s.fault.Store(&report)
		answer := make(chan error, 1)
		go func() { answer <- enqueue(t, s) }()
		c := testwait.Receive(t, "the connection of the commit", commits)
		testwait.Until(t, "the commit waits for the replica", func() bool {
			if len(answer) > 0 {
				t.Fatalf("the enqueue was answered with %v although the replica is away", <-answer)
			}
			return numberOf(t, r.Source, "", "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for semi-sync%ACK%'") > 0
		})
		before := len(dialed)
		_ = c.Wire.Close()
		testwait.Until(t, "the Store has begun a second attempt to find out", func() bool { return len(answer) > 0 || len(dialed) >= before+2 })
		if len(answer) > 0 {
			t.Fatalf("the enqueue was answered with %v although the replica is away", <-answer)
		}
		must(t, replica, "", "START REPLICA IO_THREAD")
		if err := testwait.Receive(t, "the answer", answer); err != nil {
			t.Error(err)
		}
	})
}
