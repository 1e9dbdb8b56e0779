package backendtest

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Silent checks that a server that takes the connection and says nothing is given up, after a time,
// and as soon as nobody waits any more. Open opens a database at the address, and lets a
// login take as long as login; 0: the engine's own limit.
func Silent(t *testing.T, open func(ctx context.Context, address string, login time.Duration) error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes the connections, and nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	address := ln.Addr().String()
	if err := open(t.Context(), address, 100*time.Millisecond); !backends.IsUnreachable(err) || !strings.Contains(err.Error(), "no answer to the login within 100ms") {
		t.Errorf("a silent server: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	opened := make(chan error, 1)
	go func() { opened <- open(ctx, address, 0) }()
	conn, err := ln.Accept() // the one before
	if err == nil {
		defer conn.Close()
		conn, err = ln.Accept() // this one: it waits for the server's word
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel(errors.New("nobody waits"))
	if err := <-opened; !backends.IsUnreachable(err) {
		t.Errorf("nobody waits for it any more: %v", err)
	}
}
