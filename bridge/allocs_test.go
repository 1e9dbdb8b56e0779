//go:build !race

package bridge

import (
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestAllocationsPerJob guards the allocations of the hot paths, over a Unix socket. With one client and without prefetch
// they don't depend on the order of events: each write and each claim has a commit of its own. Its allocations count too,
// and the database's. The limits are higher than the counts, 49 and 32, because other goroutines allocate at the same time. With the race
// detector the pools of package sync lose values, so the test does not run.
func TestAllocationsPerJob(t *testing.T) {
	count := func(what string, most float64, f func() error) {
		t.Helper()
		var err error
		n := testing.AllocsPerRun(2000, func() {
			if e := f(); e != nil {
				err = e
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %v allocations", what, n)
		if n > most {
			t.Errorf("%s: %v allocations, want at most %v", what, n, most)
		}
	}
	w := newTripWorker(t, start(t, unixOptions(t, &endless{noPrefetch: true})).path)
	count("an ack with a claim", 60, w.trip)

	conn, err := net.Dial("unix", start(t, unixOptions(t, memory.New())).path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	request, reply := frame("\x83\xa2op\xa7enqueue\xa5queue\xa4mail\xa7payload\xa4text"), make([]byte, 1<<10)
	count("an enqueue", 40, func() error {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		_, err := conn.Read(reply)
		return err
	})
}

// TestMemoryOfWaitingWorkers guards the memory of a connection with a waiting claim, with its goroutine's stack. It includes
// the client's end of the connection. A stack is 4 KiB after garbage collections only if a goroutine that waits for input uses
// less than 1,248 bytes of it. See shrinkstack in package runtime.
func TestMemoryOfWaitingWorkers(t *testing.T) {
	const workers = 500
	s := start(t, unixOptions(t, memory.New()))
	alive := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // frees what package sync's pools kept in the first one
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := alive()
	for range workers {
		conn, err := net.Dial("unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintln(conn, `{"op":"claim","id":1,"queue":"q","wait_ms":3600000}`); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return s.pipeline().Snapshot().IdleClaims == workers })
	each := (int64(alive()) - int64(before)) / workers
	t.Logf("a waiting worker takes %d bytes", each)
	if each > 11<<10 {
		t.Errorf("a waiting worker takes %d bytes, want at most 11 KiB", each)
	}
}
