package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// waited is a loosely typed reply to a wait.
type waited struct {
	OK    bool
	Error struct{ Code, Message string }
	Ended []struct {
		ID, State, Result string
		LastError         string `json:"last_error"`
	}
}

func (w waited) String() string { return fmt.Sprint(w.Error.Code, w.Ended) }

func (c *client) waited() (w waited) {
	c.t.Helper()
	line, err := c.line()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(line, &w); err != nil {
		c.t.Fatal(err)
	}
	return w
}

// keeping returns options of a sidecar that keeps the done jobs of the queue kept.
func keeping(b backends.Backend) Options {
	o := options(b)
	o.Queues["kept"] = Queue{RetainDone: time.Hour}
	return o
}

// TestWaitForJobs shows that a wait is answered when its jobs have ended, at once through the same sidecar and within two seconds
// through another one.
func TestWaitForJobs(t *testing.T) {
	for name, x := range map[string]struct {
		queue, mode string
		end         string // what the worker sends, with %q for its lease
		other       bool   // through another sidecar
		within      time.Duration
		want        string
	}{
		"ack":                    {"q", "all", `{"op":"ack","lease":%q,"result":"r"}`, false, 0, "[{1 done r }]"},
		"ack, any":               {"q", "any", `{"op":"ack","lease":%q,"result":"r"}`, false, 0, "[{1 done r }]"},
		"nack":                   {"q", "all", `{"op":"nack","lease":%q,"error":"e","dead":true}`, false, 0, "[{1 dead  e}]"},
		"ack elsewhere":          {"kept", "all", `{"op":"ack","lease":%q,"result":"r"}`, true, 2 * time.Second, "[{1 done r }]"},
		"nack elsewhere":         {"q", "all", `{"op":"nack","lease":%q,"error":"e","dead":true}`, true, 2 * time.Second, "[{1 dead  e}]"},
		"ack, deleted elsewhere": {"q", "all", `{"op":"ack","lease":%q,"result":"r"}`, true, 11 * time.Second, "[{1 deleted  }]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memory.New()
				a, other := start(t, keeping(b)), start(t, keeping(b))
				worker := a
				if x.other {
					worker = other
				}
				c, w := a.dial(t), worker.dial(t)
				c.call(`{"op":"enqueue","queue":%q}`, x.queue)
				j := w.claim1(x.queue)
				c.send(`{"id":1,"op":"wait","queue":%q,"ids":["1"],"mode":%q,"wait_ms":60000}`, x.queue, x.mode)
				time.Sleep(30 * time.Second) // of the virtual clock
				began := time.Now()
				w.call(x.end, j.Lease)
				if got := c.waited(); !got.OK || fmt.Sprint(got.Ended) != x.want {
					t.Errorf("%v, want %s", got, x.want)
				}
				if took := time.Since(began); took > x.within {
					t.Errorf("it was answered after %v, want %v", took, x.within)
				}
			})
		})
	}
}

// TestWaitsThatEndWithoutAll shows what a wait returns at once, at the end of its time, in a drain, and for jobs that do not
// exist.
func TestWaitsThatEndWithoutAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, keeping(memory.New()))
		c := s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"kept"},{"queue":"kept"},{"queue":"kept"}]}`)
		c.call(`{"op":"ack","lease":%q,"result":"r"}`, c.claim1("kept").Lease)
		for _, x := range []struct {
			more, want string
			takes      time.Duration
		}{
			{`"ids":["1","2"]`, "[{1 done r }]", 0},
			{`"ids":["2"]`, "[]", 0},
			{`"ids":["1","2"],"mode":"any","wait_ms":1000`, "[{1 done r }]", 0},
			{`"ids":["1","2"],"wait_ms":1000`, "[{1 done r }]", time.Second},
			{`"ids":["77","no number"]`, "[{77 deleted  } {no number deleted  }]", 0},
			{`"ids":["2"],"wait_ms":3000`, "[]", 3 * time.Second},
		} {
			began := time.Now()
			c.send(`{"op":"wait","queue":"kept",%s}`, x.more)
			if got := c.waited(); !got.OK || fmt.Sprint(got.Ended) != x.want || time.Since(began) != x.takes {
				t.Errorf("%s: %v after %v, want %s after %v", x.more, got, time.Since(began), x.want, x.takes)
			}
		}
		c.send(`{"id":1,"op":"wait","queue":"kept","ids":["2"],"wait_ms":3600000}`)
		synctest.Wait()
		s.stop()
		if got := c.waited(); got.Error.Code != string(protocol.CodeDraining) {
			t.Errorf("in a drain: %v", got)
		}
	})
}

// TestWaitOutlivesAFailover shows that a wait finds a job that ended through another sidecar while the database was away from its own.
func TestWaitOutlivesAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		db := &faulty{Backend: b}
		c, w := start(t, keeping(db)).dial(t), start(t, keeping(b)).dial(t)
		c.call(`{"op":"enqueue","queue":"kept"}`)
		lease := w.claim1("kept").Lease
		c.send(`{"id":1,"op":"wait","queue":"kept","ids":["1"],"wait_ms":60000}`)
		time.Sleep(5 * time.Second) // of the virtual clock
		for _, fault := range []*atomic.Pointer[error]{&db.heartbeat, &db.commit, &db.peek} {
			fault.Store(&errDown)
		}
		w.call(`{"op":"ack","lease":%q,"result":"r"}`, lease)
		time.Sleep(20 * time.Second)
		for _, fault := range []*atomic.Pointer[error]{&db.heartbeat, &db.commit, &db.peek} {
			fault.Store(nil)
		}
		began := time.Now()
		if got := c.waited(); fmt.Sprint(got.Ended) != "[{1 done r }]" || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %v", got, time.Since(began))
		}
	})
}

// TestWaitOutlivesALostReply shows that a wait gets the result of an ack whose commit has an unknown outcome.
func TestWaitOutlivesALostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &faulty{Backend: memory.New()}
		s := start(t, keeping(db))
		c, w := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","queue":"q","retain_ms":60000}`)
		lease := w.claim1("q").Lease
		c.send(`{"id":1,"op":"wait","queue":"q","ids":["1"],"wait_ms":60000}`)
		time.Sleep(5 * time.Second) // of the virtual clock
		lose := func(backends.CommitContent, backends.Results) error { return backends.ErrUnknownOutcome }
		db.after.Store(&lose)
		w.refused("unknown_outcome", `{"op":"ack","lease":%q,"result":"r"}`, lease)
		db.after.Store(nil)
		began := time.Now()
		if got := c.waited(); fmt.Sprint(got.Ended) != "[{1 done r }]" || time.Since(began) > 2*time.Second {
			t.Errorf("%v after %v", got, time.Since(began))
		}
	})
}

// TestManyWaits shows that waits of one connection don't wait for one another, and that waits can name a limited number of jobs.
func TestManyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, keeping(memory.New()))
		c, w := s.dial(t), s.dial(t)
		ids := ""
		for i := range 1000 {
			ids += fmt.Sprintf(`,"x%d"`, i)
		}
		c.call(`{"op":"enqueue","queue":"q"}`)
		lease := w.claim1("q").Lease
		for i := range 100 {
			d := c
			if i > 0 {
				d = s.dial(t)
			}
			d.send(`{"id":%d,"op":"wait","queue":"q","ids":["1"%s],"wait_ms":3600000}`, i, ids[:len(ids)-len(`,"x999"`)])
			synctest.Wait()
		}
		s.dial(t).refused("busy", `{"op":"wait","queue":"q","ids":["1"],"wait_ms":1}`)
		c.send(`{"id":"stats","op":"stats","queue":"q"}`)
		if r := c.receive(); !r.OK {
			t.Error(r)
		}
		w.call(`{"op":"ack","lease":%q}`, lease)
		s.dial(t).call(`{"op":"wait","queue":"q","ids":["1"]}`) // the waits name one job less now
	})
}

// TestWaitBesideManyEnds shows that a wait finds a job that ended through another sidecar, although many others ended after it before the
// next poll, and that such ends don't hide a later one.
func TestWaitBesideManyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		a, other := start(t, keeping(b)), start(t, keeping(b))
		c, w := a.dial(t), other.dial(t)
		list := strings.Repeat(`,{"queue":"kept"}`, 500)[1:]
		for range 5 {
			c.call(`{"op":"enqueue","jobs":[%s]}`, list)
		}
		var leases []string
		for range 5 {
			for _, j := range w.call(`{"op":"claim","queue":"kept","max":500}`).Jobs {
				leases = append(leases, strconv.Quote(j.Lease))
			}
		}
		last := len(leases) - 1
		if last != 2499 {
			t.Fatalf("claimed %d jobs", len(leases))
		}
		c.send(`{"id":1,"op":"wait","queue":"kept","ids":["1"],"wait_ms":60000}`)
		c.send(`{"id":2,"op":"wait","queue":"kept","ids":["2500"],"wait_ms":60000}`)
		time.Sleep(10 * time.Second) // of the virtual clock
		ended := func(want string) {
			t.Helper()
			began := time.Now()
			if got := c.waited(); fmt.Sprint(got.Ended) != want || time.Since(began) > 2*time.Second {
				t.Errorf("%v after %v, want %s", got, time.Since(began), want)
			}
		}
		w.call(`{"op":"ack","lease":%s,"result":"first"}`, leases[0])
		for some := range slices.Chunk(leases[1:last], 500) {
			w.call(`{"op":"ack","leases":[%s]}`, strings.Join(some, ","))
		}
		ended("[{1 done first }]")
		w.call(`{"op":"ack","lease":%s,"result":"last"}`, leases[last])
		ended("[{2500 done last }]")
	})
}
