package testserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// reserved keeps the sockets that reserve ports. The kernel closes them when this process ends.
var reserved struct {
	sync.Mutex
	by []net.Listener
}

// FreePort returns a free port of 127.0.0.1 for a server that stops and starts again. While it is
// stopped, no client takes the port, because it is below the range that the kernel gives to clients,
// and no other test, because the port stays reserved until this process ends.
func FreePort() (string, error) {
	reserved.Lock()
	defer reserved.Unlock()
	var failed error
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(12_000))
		reservation, err := net.Listen("unix", "@qsidecar-test-port-"+port) // in no directory, so nothing stays
		if err != nil {
			failed = err
			continue
		}
		reserved.by = append(reserved.by, reservation)
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			return port, l.Close()
		}
		failed = err
	}
	return "", fmt.Errorf("no free port on 127.0.0.1: %w", failed)
}
