package mysql

import (
	"maps"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends/backendtest/cost"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestCost checks how many round trips and statements the claim path takes, on one server without a cluster.
// No other test runs beside it, because beside open transactions that write claims scan more rows (package cursor).
func TestCost(t *testing.T) {
	inTurn(t, func(t *testing.T, m *testserver.MySQL) {
		sent := &counted{}
		s := open(t, Options{URL: m.URL(m.Database(t)), wrap: func(c net.Conn) net.Conn { return &counter{Conn: c, to: sent} }})
		at := time.Now()
		s.LocalTime = func() time.Time { return at }
		want := map[string]cost.Cost{
			"enqueue of 1": {1, 5}, "claim of 1": {2, 6}, "ack of 1": {1, 5}, "nack of 1": {2, 8}, "ack and claim of 1": {2, 9},
			"enqueue of 100": {1, 6}, "claim of 100": {2, 6}, "ack of 100": {1, 5}, "nack of 100": {2, 8}, "ack and claim of 100": {2, 9},
			"enqueue with keys of 1": {2, 10}, "enqueue with keys of 100": {2, 11}, "idle claim": {2, 5},
		}
		if m.Kind == testserver.MariaDB105 { // without SKIP LOCKED
			maps.Copy(want, map[string]cost.Cost{
				"claim of 1": {3, 8}, "claim of 100": {3, 8}, "ack and claim of 1": {3, 11}, "ack and claim of 100": {3, 11}, "idle claim": {2, 7},
			})
		}
		cost.Check(t, s, sent.cost, want)
		cost.Expiring(t, s, sent.cost, cost.Cost{2, 7})
	})
}

// counted is what a Store sent.
type counted struct {
	sync.Mutex
	cost.Cost
}

func (c *counted) cost() cost.Cost {
	c.Lock()
	defer c.Unlock()
	return c.Cost
}

// counter is a connection that counts the commands that the driver sends. It writes each packet in one piece. A
// command is packet 0, after the four bytes of the header. COM_QUERY (3) has statements that semicolons separate.
type counter struct {
	net.Conn
	to *counted
}

func (c *counter) Write(p []byte) (int, error) {
	if len(p) > 4 && p[3] == 0 {
		c.to.Lock()
		c.to.Cost[0]++
		if p[4] == 3 {
			c.to.Cost[1] += 1 + strings.Count(string(p), ";\n")
		}
		c.to.Unlock()
	}
	return c.Conn.Write(p)
}

// SyscallConn lets the pool find out that an idle connection was closed.
func (c *counter) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(syscall.Conn).SyscallConn()
}
