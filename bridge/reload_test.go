package bridge

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge/internal/metrics"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// address is one way to a database of that id.
type address struct {
	*memory.Backend
	id string
}

func (a *address) Info() backends.Info {
	info := a.Backend.Info()
	info.Database = a.id
	return info
}

func newAddress(id string) *address { return &address{memory.New(), id} }

// with returns a changed copy of the options.
func with(o Options, change func(o *Options)) Options {
	o.Databases, o.Queues = maps.Clone(o.Databases), maps.Clone(o.Queues)
	o.Sockets = append([]Socket{}, o.Sockets...)
	change(&o)
	return o
}

func (s *sidecar) reloads(t *testing.T, o Options) {
	t.Helper()
	if err := s.Reload(o); err != nil {
		t.Fatalf("Reload: %v", err)
	}
}

func TestReloadOfQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Queues = map[string]Queue{"a": {}, "b": {MaxAttempts: 1}}
		s, l := startLogged(t, o)
		c := s.dial(t)
		c.refused("unknown_queue", `{"op":"enqueue","queue":"c"}`)
		for _, q := range []string{"a", "b"} {
			c.send(`{"op":"claim","queue":%q,"wait_ms":60000,"id":%q}`, q, q)
		}
		c.call(`{"op":"ping"}`) // both wait
		s.reloads(t, with(o, func(o *Options) {
			delete(o.Queues, "a")
			o.Queues["b"] = Queue{MaxAttempts: 7}
			o.Queues["c"] = Queue{}
		}))
		if r := c.receive(); r.ID != "a" || r.Error.Code != "unknown_queue" {
			t.Errorf("the claim of a queue that is gone was answered %+v", r)
		}
		c.refused("unknown_queue", `{"op":"claim","queue":"a","wait_ms":60000}`)
		if lines := l.of(t, "unknown_queue_claimed"); len(lines) != 1 || !strings.Contains(lines[0]["error"].(string), `no queue "a"`) {
			t.Errorf("logged %v, want one line about the queue", lines)
		}
		c.refused("unknown_queue", `{"op":"enqueue","queue":"a"}`)
		c.call(`{"op":"enqueue","queue":"c"}`)
		c.send(`{"op":"enqueue","queue":"b","id":1}`)
		for range 2 {
			r := c.receive()
			if r.ID == "b" && (len(r.Jobs) != 1 || r.Jobs[0].MaxAttempts != 7) {
				t.Errorf("the claim that waited over the reload was answered %+v, want a job by the new limit", r)
			}
		}
	})
}

func TestReloadChangesNothingWithAnError(t *testing.T) {
	db := newAddress("BBBBBBBBBBB")
	o := unixOptions(t, db)
	o.Queues = map[string]Queue{"a": {}}
	s := start(t, o)
	c := s.dial(t)
	series, before := s.seriesOf(t, "second"), s.config.Load()
	blocked := filepath.Join(shortDir(t), "f")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	added := filepath.Join(shortDir(t), "new.sock")
	for what, bad := range map[string]Options{
		"a socket": with(o, func(o *Options) {
			o.Queues = map[string]Queue{"b": {}}
			o.Sockets[0].Mode = 0o600
			o.Sockets = append(o.Sockets, Socket{Path: added}, Socket{Path: blocked})
		}),
		"a socket beside a new database": with(o, func(o *Options) {
			o.Databases["second"] = Database{Backend: newAddress("CCCCCCCCCCC")}
			o.Queues = map[string]Queue{"b": {Database: "second"}}
			o.Sockets = append(o.Sockets, Socket{Path: blocked})
		}),
		"a queue": with(o, func(o *Options) { o.Queues = map[string]Queue{"b": {Timeout: -1}} }),
		"twins": with(o, func(o *Options) {
			o.Databases["twin"] = o.Databases["main"]
			o.Queues = map[string]Queue{"b": {Database: "twin"}}
		}),
	} {
		bad.Databases["main"] = Database{Backend: &address{db.Backend, db.id}, SidecarTimeout: time.Minute, RestartGrace: time.Minute,
			Done: func() { t.Errorf("%s: the Backend of a config that was refused was used", what) }}
		bad.MaxFrame = 1 << 20
		if err := s.Reload(bad); err == nil {
			t.Errorf("%s that cannot be had is no error", what)
		}
	}
	p := before.databases[0]
	if s.config.Load() != before || !p.Uses(db) || p.SidecarTimeout() != MaxSidecarTimeout || p.RestartGrace() != MaxSidecarTimeout {
		t.Errorf("after reloads that were refused: sidecar timeout %v, grace %v, its own plan: %v, its own Backend: %v",
			p.SidecarTimeout(), p.RestartGrace(), s.config.Load() == before, p.Uses(db))
	}
	if n := s.seriesOf(t, "second"); n != series {
		t.Errorf("a database of a config that was refused has %d metrics, want %d", n, series)
	}
	c.call(`{"op":"stats","queue":"a"}`)
	c.refused("unknown_queue", `{"op":"stats","queue":"b"}`)
	if info, err := os.Stat(s.path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket's mode is %v (%v)", info.Mode(), err)
	}
	if _, err := os.Lstat(added); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a config that was refused is there: %v", err)
	}
}

// seriesOf counts the metrics of a database.
func (s *sidecar) seriesOf(t *testing.T, database string) (n int) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(s.Metrics())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == metrics.LabelDatabase && l.GetValue() == database {
					n++
				}
			}
		}
	}
	return n
}

// TestReloadOfAnAddress shows a reload with a new address of the same database.
func TestReloadOfAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newAddress("BBBBBBBBBBB")
		o := options(db)
		done := make(chan struct{})
		o.Databases["main"] = Database{Backend: db, Done: func() { close(done) }}
		s := start(t, o)
		c, waits := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","queue":"a"}`)
		held := c.claim1("a")
		waits.send(`{"op":"claim","queue":"a","wait_ms":60000}`)
		s.reloads(t, with(o, func(o *Options) {
			o.Databases["main"] = Database{Backend: &address{db.Backend, db.id}, SidecarTimeout: time.Minute}
		}))
		<-done
		c.call(`{"op":"ack","lease":%q}`, held.Lease)
		c.call(`{"op":"enqueue","queue":"a"}`)
		if r := waits.receive(); len(r.Jobs) != 1 || r.Jobs[0].Attempt != 1 {
			t.Errorf("the claim that waited over the reload was answered %+v", r)
		}
	})
}

// TestReloadOfADatabase shows that queues move to another database, and that the old one stays open while a lease
// exists in it.
func TestReloadOfADatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := newAddress("BBBBBBBBBBB"), newAddress("CCCCCCCCCCC")
		o := options(from)
		done := make(chan struct{})
		o.Databases["main"] = Database{Backend: from, Done: func() { close(done) }}
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"a"}`)
		held := c.claim1("a")
		waiting, began := []*client{s.dial(t), s.dial(t), s.dial(t)}, time.Now()
		waiting[0].send(`{"op":"claim","queue":"a","wait_ms":60000}`)
		waiting[1].send(`{"op":"claim","queue":"a","wait_ms":60000,"id":1}`) // no goroutine waits for its answer
		waiting[2].send(`{"op":"claim","queue":"none","wait_ms":60000,"id":2}`)
		eventually(t, func() bool { return s.pipeline().Snapshot().IdleClaims == 3 })
		moved := with(o, func(o *Options) { o.Databases["main"] = Database{Backend: to} })
		s.reloads(t, moved)
		time.Sleep(time.Second)
		c.call(`{"op":"enqueue","queue":"a","payload":"new"}`)
		c.call(`{"op":"enqueue","queue":"a","payload":"new"}`)
		for _, w := range waiting[:2] {
			if r := w.receive(); len(r.Jobs) != 1 || r.Jobs[0].Payload != "new" {
				t.Errorf("a claim that waited over the move was answered %+v, want a job in the new database", r)
			}
		}
		if r := waiting[2].receive(); !r.OK || len(r.Jobs) > 0 || time.Since(began) != time.Minute {
			t.Errorf("a claim without jobs was answered after %v with %+v, want its whole wait", time.Since(began), r)
		}
		select {
		case <-done:
			t.Fatal("the old database was closed with a lease open in it")
		default:
		}
		c.call(`{"op":"extend","lease":%q}`, held.Lease)
		// Back again: the old database is in service again, and its leases are unchanged.
		s.reloads(t, o)
		c.call(`{"op":"extend","lease":%q}`, held.Lease)
		s.reloads(t, moved)
		c.call(`{"op":"ack","lease":%q}`, held.Lease)
		testwait.Closed(t, "the old database, in which no lease is open", done)
		c.refused("lease_lost", `{"op":"ack","lease":%q}`, held.Lease)
	})
}

// TestReloadUnderLoad shows that no job is lost or delivered twice while everything changes.
func TestReloadUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newAddress("BBBBBBBBBBB")
		o := options(db)
		o.Queues = map[string]Queue{"a": {}}
		s := start(t, o)
		const workers, each, reloads = 8, 60, 60
		var mu sync.Mutex
		seen := make(map[string]int)
		var working sync.WaitGroup
		for n := range workers {
			c := s.dial(t)
			working.Go(func() {
				for i := range each {
					c.send(`{"op":"enqueue","queue":"a","payload":"%d-%d"}`, n, i)
					c.send(`{"op":"claim","queue":"a","wait_ms":20000}`)
					for range 2 {
						line, err := c.line()
						if err != nil {
							t.Error(err)
							return
						}
						if r := parse(t, line); !r.OK {
							t.Errorf("%s", line)
						} else if len(r.Jobs) == 1 {
							mu.Lock()
							seen[r.Jobs[0].Payload]++
							mu.Unlock()
							c.send(`{"op":"ack","lease":%q}`, r.Jobs[0].Lease)
							if line, err := c.line(); err != nil || !parse(t, line).OK {
								t.Errorf("ack: %s %v", line, err)
							}
						}
					}
				}
			})
		}
		released := make(chan struct{}, reloads)
		for n := range reloads {
			next := with(o, func(o *Options) {
				o.Databases["main"] = Database{Backend: &address{db.Backend, db.id}, Done: func() { released <- struct{}{} }}
				if n%2 == 0 {
					o.Queues[fmt.Sprintf("q%d", n)] = Queue{}
					o.Sockets = append(o.Sockets, Socket{Path: filepath.Join(filepath.Dir(s.path), "2.sock")})
				}
				o.MaxFrame = 1<<20 + n
			})
			s.reloads(t, next)
		}
		working.Wait()
		for payload, times := range seen {
			if times != 1 {
				t.Errorf("the job %s was delivered %d times", payload, times)
			}
		}
		if len(seen) != workers*each {
			t.Errorf("%d jobs were delivered, want %d", len(seen), workers*each)
		}
		for range reloads - 1 { // all except the one in use
			testwait.Receive(t, "that a Backend which is not in use any more is given up", released)
		}
	})
}
