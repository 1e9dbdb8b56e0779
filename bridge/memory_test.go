package bridge

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// heap returns the bytes of the heap in use, without garbage.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second GC frees the contents of pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemoryOfNacks shows that nacks whose commit hangs keep only the part of an error that is stored.
func TestMemoryOfNacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nacks, size = 64, 2 << 20
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		var leases []string
		for range nacks {
			c.call(`{"op":"enqueue","queue":"q"}`)
			leases = append(leases, c.claim1("q").Lease)
		}
		gate := make(chan struct{})
		db.block.Store(&gate)
		before := heap()
		for i, lease := range leases {
			c.send(`{"op":"nack","id":%d,"lease":%q,"error":"%s"}`, i, lease, strings.Repeat("x", size))
		}
		p := s.pipeline()
		synctest.Wait()
		kept := heap() - before
		t.Logf("%d open nacks with an error of %d MiB each keep %d MiB", nacks, size>>20, kept>>20)
		if kept > nacks*size/4 {
			t.Errorf("%d MiB are kept for errors that are cut to 4 KiB", kept>>20)
		}
		if n := p.Snapshot().QueuedWrites; n == 0 {
			t.Error("no write waits")
		}
		db.block.Store(nil)
		close(gate)
		for range nacks {
			c.receive()
		}
	})
}

// TestMemoryOfSettledLeases shows that settles whose commit hangs keep no more memory than the limit of writes,
// whatever leases they name.
func TestMemoryOfSettledLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const settles, leases = 400, 1000
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"q"}`)
		lease := c.claim1("q").Lease
		others := ""
		for i := range leases - 1 {
			others += fmt.Sprintf(`,"%0*d"`, protocol.MaxLease, i)
		}
		gate := make(chan struct{})
		db.block.Store(&gate)
		before := heap()
		go func() {
			for i := range settles {
				if _, err := fmt.Fprintf(c.conn, `{"op":"extend","id":%d,"leases":[%q%s]}`+"\n", i, lease, others); err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		kept := heap() - before
		t.Logf("%d settles of %d leases each keep %d MiB", settles, leases, kept>>20)
		if kept > writesMemory*5/4 {
			t.Errorf("%d MiB are kept, and writes may take %d MiB", kept>>20, int64(writesMemory)>>20)
		}
		db.block.Store(nil)
		close(gate)
		r := c.receive()
		if len(r.Lost) < leases-1 {
			t.Errorf("answered %+v", r.Error)
		}
		c.close()
	})
}

// TestMemoryOfAbandonedWrites shows that jobs that were reported as not stored are not kept in memory, however long a
// commit hangs.
func TestMemoryOfAbandonedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 2 << 20
		db := &faulty{Backend: memory.New()}
		s := start(t, options(db))
		c := s.dial(t)
		gate := make(chan struct{})
		db.block.Store(&gate)
		c.send(`{"op":"enqueue","queue":"q","id":"first"}`)
		synctest.Wait()
		before, sent := heap(), 0
		for range 4 {
			for range 16 {
				c.send(`{"op":"enqueue","queue":"q","id":%d,"payload":"%s"}`, sent, strings.Repeat("x", size))
				sent++
			}
			time.Sleep(enqueueWait + time.Second)
		}
		for range sent {
			if r := c.receive(); r.Error.Code != "unavailable" {
				t.Fatalf("an enqueue behind a commit that hangs was answered %+v", r)
			}
		}
		kept := heap() - before
		t.Logf("%d abandoned enqueues of %d MiB keep %d MiB", sent, size>>20, kept>>20)
		if kept > 16<<20 {
			t.Errorf("%d MiB are kept for writes that are abandoned", kept>>20)
		}
		if n := s.pipeline().Snapshot().QueuedWrites; n > sent/2 {
			t.Errorf("%d writes that are abandoned are still queued", n)
		}
		db.block.Store(nil)
		close(gate)
		c.receive()
	})
}

// TestMemoryOfIdleSessions shows that a session that is idle, or whose claim waits, keeps nothing of its large
// request before that.
func TestMemoryOfIdleSessions(t *testing.T) {
	for what, behind := range map[string]string{"idle": "", "a claim waits": `{"op":"claim","queue":"none","wait_ms":3600000}` + "\n"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const sessions, size = 48, 1 << 20
				s, _ := limited(t, Limits{BufferMemory: 64 << 20})
				before := heap()
				payload := strings.Repeat("x", size)
				for range sessions {
					conn := s.net.dial(t, s.path)
					defer conn.Close()
					go func() { _, _ = fmt.Fprintf(conn, `{"op":"ack","lease":"none","result":"%s"}`+"\n%s", payload, behind) }()
					synctest.Wait()
				}
				n, kept := s.buffered(), heap()-before
				t.Logf("%d sessions after a request of %d MiB: %d bytes count as buffered, %d MiB are kept", sessions, size>>20, n, kept>>20)
				if n > 0 || kept > sessions*size/4 {
					t.Errorf("%d bytes count as buffered, %d MiB are kept", n, kept>>20)
				}
				s.dial(t).call(`{"op":"enqueue","queue":"q","payload":"%s"}`, payload)
			})
		})
	}
}

// TestBlockedSessionsMakeRoom shows that sessions whose claim waits, with many unread requests behind it, are closed
// when others need the memory.
func TestBlockedSessionsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := limited(t, Limits{BufferMemory: 64 << 20})
		payload := strings.Repeat("x", 2<<20)
		for range 32 {
			conn := s.net.dial(t, s.path)
			defer conn.Close()
			go func() { // one message first, so that the buffer is large when the claim is read
				_, _ = fmt.Fprintf(conn, `{"op":"ack","lease":"none","result":"%s"}`+"\n"+`{"op":"claim","queue":"none","wait_ms":3600000}`+"\n"+`{"op":"ack","lease":"none","result":"%s"}`+"\n", payload, strings.Repeat("y", 3<<20))
			}()
			synctest.Wait()
		}
		s.dial(t).call(`{"op":"enqueue","queue":"q","payload":"%s"}`, payload)
	})
}
