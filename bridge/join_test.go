package bridge

import (
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestJoinIsSetWhileManyConnectionsSettle shows that replies ask for one request instead of two while many connections settle in
// each commit, and no longer when few do.
func TestJoinIsSetWhileManyConnectionsSettle(t *testing.T) {
	const many = 100
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		other := s.dial(t)
		clients := make([]*client, many)
		for i := range clients {
			clients[i] = s.dial(t)
		}
		// joined settles a job on each of the first n connections, in one commit. It returns how many replies have join.
		joined := func(n int) (all int) {
			t.Helper()
			jobs := make([]job, n)
			for i, c := range clients[:n] {
				c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
				jobs[i] = c.claim1("q")
			}
			end := make(chan struct{})
			db.block.Store(&end)
			other.send(`{"op":"enqueue","queue":"other"}`) // what comes during its commit shares the next one
			synctest.Wait()
			for i, c := range clients[:n] {
				c.send(`{"op":"ack","id":1,"lease":%q,"claim":{"queue":"q"}}`, jobs[i].Lease)
			}
			synctest.Wait()
			db.block.Store(nil)
			close(end)
			other.receive()
			for _, c := range clients[:n] {
				r := c.receive()
				if len(r.Jobs) != 1 || r.Acked != 1 {
					t.Fatalf("an ack with a claim was answered with %+v", r)
				}
				if r.Join {
					all++
				}
			}
			return all
		}
		if n := joined(10); n != 0 {
			t.Errorf("beside 10 connections %d replies have join", n)
		}
		if n := joined(many); n != many {
			t.Errorf("beside %d connections %d replies have join", many, n)
		}
		for range 10 {
			joined(3)
		}
		if n := joined(3); n != 0 {
			t.Errorf("when only 3 connections settle, %d replies have join", n)
		}
	})
}
