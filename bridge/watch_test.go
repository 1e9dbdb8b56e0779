package bridge

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// watched is a loosely typed reply to a watch.
type watched struct {
	ID     int
	OK     bool
	Events []struct{ Event, Queue, ID string }
	Missed int
}

func (c *client) watch(format string, args ...any) (r watched) {
	c.t.Helper()
	c.send(format, args...)
	line, err := c.line()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(line, &r); err != nil || !r.OK {
		c.t.Fatalf("%s: %v", line, err)
	}
	return r
}

// TestSlowWatcherMissesEvents shows that a client that does not ask for its events delays no other, and that it gets the number
// of those that it missed.
func TestSlowWatcherMissesEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		slow, producer := s.dial(t), s.dial(t)
		slow.watch(`{"op":"watch"}`)
		const jobs = 5000
		for i := 0; i < jobs; i += 500 {
			list := `{"queue":"q"}`
			for range 499 {
				list += `,{"queue":"q"}`
			}
			producer.call(`{"op":"enqueue","jobs":[%s]}`, list)
		}
		got, missed := 0, 0
		for {
			r := slow.watch(`{"op":"watch"}`)
			got, missed = got+len(r.Events), missed+r.Missed
			if len(r.Events) == 0 {
				break
			}
		}
		if got != 4096 || missed != jobs-4096 {
			t.Errorf("got %d events and missed %d of %d", got, missed, jobs)
		}
	})
}

// TestWatchNeedsRights shows that a client gets only the events of queues on which it has the right.
func TestWatchNeedsRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Sockets[0].Allow = []Rule{me([]protocol.Op{protocol.OpWatch}, "mail-*"), me([]protocol.Op{protocol.OpEnqueue})}
		o.Sockets = append(o.Sockets, Socket{Path: inMemory + "none.sock", Allow: []Rule{me([]protocol.Op{protocol.OpPing})}})
		s := start(t, o)
		c := s.dial(t)
		if r := c.refused("forbidden", `{"op":"watch","queue":"other"}`); r.Error.Field != "queue" {
			t.Errorf("the field of %+v is not named", r.Error)
		}
		c.watch(`{"op":"watch"}`)
		c.call(`{"op":"enqueue","jobs":[{"queue":"other"},{"queue":"mail-a"}]}`)
		if r := c.watch(`{"op":"watch"}`); len(r.Events) != 1 || r.Events[0].Queue != "mail-a" {
			t.Errorf("got the events %+v", r.Events)
		}
		s.path = inMemory + "none.sock"
		s.dial(t).refused("forbidden", `{"op":"watch"}`)
	})
}

// TestWatchesAreBounded shows that a connection has one watch at a time, and that a sidecar has a limit of them.
func TestWatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c := s.dial(t)
		c.send(`{"id":1,"op":"watch","wait_ms":60000}`)
		c.refused("busy", `{"id":2,"op":"watch"}`)
		c.call(`{"id":3,"op":"enqueue","queue":"q"}`)
		var others []*client
		for range 31 {
			others = append(others, s.dial(t))
			others[len(others)-1].watch(`{"op":"watch"}`)
		}
		late := s.dial(t)
		late.refused("busy", `{"op":"watch"}`)
		others[0].call(`{"op":"bye"}`)
		others[1].close()
		synctest.Wait()
		late.watch(`{"op":"watch"}`)
		if n := s.Events().Subscribers(); n != 31 {
			t.Errorf("%d subscribers", n)
		}
	})
}

// TestDrainDoesNotWaitForWatches shows that a waiting watch does not delay a drain, and gets the last events.
func TestDrainDoesNotWaitForWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, options(memory.New()))
		c, worker := s.dial(t), s.dial(t)
		c.watch(`{"op":"watch"}`)
		worker.call(`{"op":"enqueue","queue":"q"}`)
		lease := worker.claim1("q").Lease
		if r := c.watch(`{"op":"watch","wait_ms":3600000}`); len(r.Events) != 2 {
			t.Errorf("got %+v", r)
		}
		c.send(`{"op":"watch","wait_ms":3600000}`)
		synctest.Wait()
		s.stop()
		synctest.Wait()
		worker.call(`{"op":"ack","lease":%q}`, lease)
		if err := s.wait(t); err != nil {
			t.Error(err)
		}
		line, err := c.line()
		var r watched
		if err != nil || json.Unmarshal(line, &r) != nil || fmt.Sprint(r.Events) != "[{acked q 1}]" {
			t.Errorf("the watch is answered %s, %v", line, err)
		}
	})
}
