package bridge

import (
	"fmt"
	"os"
	"regexp"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// received reports whether a reply arrived that was not read yet.
func (c *client) received() bool {
	in := c.conn.(*memConn).in
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.buf) > 0
}

// held sends a request whose commit waits, so that later requests wait too. It returns a function that lets them
// continue.
func held(t *testing.T, db *faulty, c *client, request string) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	db.blocked.Store(0)
	db.block.Store(&gate)
	c.send("%s", request)
	eventually(t, func() bool { return db.blocked.Load() == 1 })
	return func() {
		db.block.Store(nil)
		close(gate)
	}
}

// TestAnswersComeAfterTheCommit shows that an enqueue, ack, nack or extend is answered after the database has
// committed it, and not before.
func TestAnswersComeAfterTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		worker := s.dial(t)
		requests := []string{`{"op":"enqueue","queue":"q"}`}
		for _, request := range []string{
			`{"op":"ack","lease":%q}`, `{"op":"ack","leases":[%q]}`, `{"op":"ack","lease":%q,"enqueue":[{"queue":"q"}]}`,
			`{"op":"nack","lease":%q}`, `{"op":"extend","lease":%q,"bind":true}`, `{"op":"extend","lease":%q,"lease_ms":60000}`,
		} {
			worker.call(`{"op":"enqueue","queue":"work"}`)
			requests = append(requests, fmt.Sprintf(request, worker.claim1("work").Lease))
		}
		for _, request := range requests {
			c := s.dial(t)
			release := held(t, db, c, request)
			synctest.Wait()
			if c.received() {
				t.Errorf("%s: answered while its commit is under way", request)
			}
			release()
			if r := c.receive(); !r.OK {
				t.Errorf("%s: %+v", request, r.Error)
			}
		}
	})
}

// TestEachSessionGetsItsOwnAnswers shows that writes and claims of many sessions share one commit, and that each
// session gets the results of its own.
func TestEachSessionGetsItsOwnAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		first, clients := s.dial(t), make([]*client, 6)
		for i := range clients {
			clients[i] = s.dial(t)
		}
		together := func(request func(i int) string, answered func(i int, r reply)) {
			t.Helper()
			release := held(t, db, first, `{"op":"enqueue","queue":"first"}`)
			for i, c := range clients {
				c.send("%s", request(i))
			}
			synctest.Wait()
			release()
			first.receive()
			for i, c := range clients {
				answered(i, c.receive())
			}
		}
		together(func(i int) string {
			return fmt.Sprintf(`{"op":"enqueue","queue":"q%d","payload":"p%d"}`, i, i)
		}, func(i int, r reply) {
			v := clients[i].call(`{"op":"peek","queue":"q%d","ids":[%q]}`, i, r.Job.ID).Jobs
			if len(v) != 1 || v[0].Payload != fmt.Sprintf("p%d", i) {
				t.Errorf("client %d received the job %q, which is %+v", i, r.Job.ID, v)
			}
		})
		leases := make([]string, len(clients))
		together(func(i int) string {
			return fmt.Sprintf(`{"op":"claim","queue":"q%d","wait_ms":1000}`, i)
		}, func(i int, r reply) {
			if len(r.Jobs) != 1 || r.Jobs[0].Payload != fmt.Sprintf("p%d", i) {
				t.Fatalf("client %d claimed %+v", i, r.Jobs)
			}
			leases[i] = r.Jobs[0].Lease
		})
		together(func(i int) string {
			if i == 2 {
				return fmt.Sprintf(`{"op":"ack","lease":%q}`, leases[i]+"7") // another job's id
			}
			return fmt.Sprintf(`{"op":"ack","lease":%q}`, leases[i])
		}, func(i int, r reply) {
			if lost := r.Error.Code == "lease_lost"; r.OK == lost || lost != (i == 2) {
				t.Errorf("client %d's ack was answered %v, %+v", i, r.OK, r.Error)
			}
		})
	})
}

// TestEveryOpNeedsItsRight shows that an op that no rule of the socket allows is forbidden, by itself and by its
// queue, and changes nothing.
func TestEveryOpNeedsItsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		nothing, elsewhere := inMemory+"nothing.sock", inMemory+"elsewhere.sock"
		o.Sockets = append(o.Sockets,
			Socket{Path: nothing, Allow: []Rule{{Users: []uint32{4_000_000_000}}}},
			Socket{Path: elsewhere, Allow: []Rule{me(nil, "open")}})
		s := start(t, o)
		holder := s.dial(t)
		holder.call(`{"op":"enqueue","queue":"closed"}`)
		j := holder.claim1("closed")
		requests := map[protocol.Op]string{
			"enqueue": `,"queue":"closed"`, "claim": `,"queue":"closed","wait_ms":1000`, "stats": `,"queue":"closed"`, "history": `,"queue":"closed"`,
			"ack": fmt.Sprintf(`,"lease":%q`, j.Lease), "nack": fmt.Sprintf(`,"leases":[%q]`, j.Lease), "extend": fmt.Sprintf(`,"lease":%q,"bind":true`, j.Lease),
			"peek": `,"queue":"closed"`, "retry": `,"queue":"closed","all":true`, "delete": fmt.Sprintf(`,"queue":"closed","ids":[%q]`, j.ID),
			"reclaim": fmt.Sprintf(`,"queue":"closed","ids":[%q]`, j.ID), "cancel": fmt.Sprintf(`,"queue":"closed","ids":[%q]`, j.ID), "purge": `,"queue":"closed","state":"ready"`,
			"change": fmt.Sprintf(`,"queue":"closed","ids":[%q],"priority":1`, j.ID),
			"pause":  `,"queue":"closed"`, "resume": `,"queue":"closed"`, "limit": `,"queue":"closed","max_claimed":1`, "watch": `,"queue":"closed"`,
			"progress":  fmt.Sprintf(`,"lease":%q,"done":1`, j.Lease),
			"wait":      fmt.Sprintf(`,"queue":"closed","ids":[%q]`, j.ID),
			"schedules": `,"queue":"closed"`, "schedule": `,"queue":"closed","schedule":{"name":"s","every_ms":1000}`,
			"change_schedule": `,"queue":"closed","schedule":{"name":"s"},"do":"run"`, "open_batch": `,"queue":"closed","on":"finish"`, "close_batch": `,"queue":"closed","batch":"1"`,
			"cancel_batch": `,"queue":"closed","batch":"1"`, "batches": `,"queue":"closed"`, "ping": "", "reload": "", "status": "",
			"config": "", "fleet": "", "check": "",
		}
		for op, more := range requests {
			s.path = nothing
			s.dial(t).refused("forbidden", `{"op":%q%s}`, op, more)
			if s.path = elsewhere; more != "" {
				s.dial(t).refused("forbidden", `{"op":%q%s}`, op, more)
			}
		}
		for _, op := range allOps(t) {
			if _, tried := requests[op]; !tried && op != protocol.OpHello && op != protocol.OpCancelClaim && op != protocol.OpBye {
				t.Errorf("the op %s was not tried", op)
			}
		}
		q := holder.call(`{"op":"stats","queue":"closed"}`).Queues[0]
		if q["claimed"] != 1.0 || q["ready"] != 0.0 || q["paused"] == true {
			t.Errorf("after what was forbidden: %v", q)
		}
		holder.call(`{"op":"ack","lease":%q}`, j.Lease)
	})
}

// allOps are the ops of the protocol.
func allOps(t *testing.T) (all []protocol.Op) {
	t.Helper()
	text, err := os.ReadFile("../protocol/message.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\tOp\w+ +Op? += "(\w+)"`).FindAllSubmatch(text, -1) {
		all = append(all, protocol.Op(m[1]))
	}
	if len(all) < 19 {
		t.Fatalf("message.go has %d ops: %v", len(all), all)
	}
	return all
}

// TestHeartbeatIsLateInTime shows that a sidecar whose heartbeats do not reach the database hands out jobs until the
// last one is late by its own clock, and none after that. This is before other sidecars can hand them out.
func TestHeartbeatIsLateInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"q"}]}`)
		db.heartbeat.Store(&errDown)
		const moment = time.Millisecond
		good := s.pipeline().SidecarTimeout() * 13 / 20 // of a heartbeat, by its sidecar's clock; see heartbeat.Heartbeater
		time.Sleep(good - s.pipeline().HeartbeatAge() - moment)
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 1 {
			t.Errorf("before it is late: %+v, want a job", r.Jobs)
		}
		time.Sleep(moment)
		c.refused("unavailable", `{"op":"claim","queue":"q"}`)
		if s.Health().Databases[0].Reachable {
			t.Error("it counts as reachable")
		}
		db.heartbeat.Store(nil)
	})
}

// TestSuspendedSidecarHandsNothingOut shows a sidecar that is suspended between a claim's commit and its answer, for
// longer than its heartbeat is valid, and whose database is unreachable then. It is suspended before the jobs are
// given to their claims, and after that.
func TestSuspendedSidecarHandsNothingOut(t *testing.T) {
	for reads := range 2 { // reads of the clock after the commit and before the suspension
		synctest.Test(t, func(t *testing.T) {
			db := &faulty{Backend: memory.New()}
			s := suspended(t, db, reads, func() { db.heartbeat.Store(&errDown) })
			c := s.dial(t)
			c.call(`{"op":"enqueue","queue":"q"}`)
			c.refused("unavailable", `{"op":"claim","queue":"q"}`)
			c.refused("unavailable", `{"op":"claim","queue":"q"}`) // still late: it does not even send the claim
			db.heartbeat.Store(nil)
			if j := c.claim1("q"); j.Attempt != 1 {
				t.Errorf("attempt %d, want 1: the first was never handed out", j.Attempt)
			}
		})
	}
}

// TestSuspendedSidecarMakesSure shows that jobs that were claimed before a suspension are handed out if the database
// confirms that the sidecar is still alive.
func TestSuspendedSidecarMakesSure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := suspended(t, &faulty{Backend: memory.New()}, 0, func() {})
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 1 {
			t.Errorf("got %+v, want the job", r.Jobs)
		}
	})
}

// suspended starts a sidecar that is suspended once, for an hour, when its heartbeater has read the clock that many
// times after the commit of a claim that found jobs.
func suspended(t *testing.T, db *faulty, reads int, then func()) *sidecar {
	t.Helper()
	var skew atomic.Int64
	var left atomic.Int32
	left.Store(-1)
	b := newWithClock(t, options(db), func(now time.Duration) time.Duration {
		now += time.Duration(skew.Load())
		if left.Add(-1) == 0 {
			skew.Add(int64(time.Hour))
			then()
		}
		return now
	})
	var once atomic.Bool
	suspend := func(_ backends.CommitContent, res backends.Results) error {
		if len(res.Claims) > 0 && len(res.Claims[0].Jobs) > 0 && once.CompareAndSwap(false, true) {
			if left.Store(int32(reads)); reads == 0 {
				skew.Add(int64(time.Hour))
				then()
			}
		}
		return nil
	}
	db.after.Store(&suspend)
	return run(t, b)
}

// TestLateHeartbeatStopsHandOuts shows that no job is handed out or bound once the heartbeat is late, neither a new
// one nor a prefetched one.
func TestLateHeartbeatStopsHandOuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		f := slow
		db.after.Store(&f)
		var skew atomic.Int64
		s := run(t, newWithClock(t, options(db), func(now time.Duration) time.Duration { return now + time.Duration(skew.Load()) }))
		c := busyQueue(t, s, "q")[0]
		j := c.call(`{"op":"claim","queue":"q"}`).Jobs[0]
		db.heartbeat.Store(&errDown)
		if s.prefetched() == 0 {
			t.Fatal("nothing is claimed ahead")
		}
		skew.Store(int64(s.pipeline().SidecarTimeout())) // the last heartbeat is old
		c.refused("unavailable", `{"op":"claim","queue":"q"}`)
		c.refused("unavailable", `{"op":"extend","lease":%q,"bind":true}`, j.Lease)
		if h := s.Health(); h.Databases[0].Reachable {
			t.Error("it counts as reachable")
		}
		db.heartbeat.Store(nil)
		time.Sleep(time.Second)
		c.claim1("q")
	})
}
