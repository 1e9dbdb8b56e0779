package testserver

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// CheckSilentServer checks the login at a server that accepts the connection and never answers. The
// engine gives up after the login time limit, and at once if the context ends. open opens a
// database at the address with a login time limit (0: the engine's own).
func CheckSilentServer(t *testing.T, open func(ctx context.Context, address string, login time.Duration) error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts the connections, and no program reads
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
	conn, err := ln.Accept() // the connection of the first attempt
	if err == nil {
		defer conn.Close()
		conn, err = ln.Accept() // the connection of the second attempt, which waits for an answer
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel(errors.New("the caller gave up"))
	if err := <-opened; !backends.IsUnreachable(err) {
		t.Errorf("after its context ended: %v", err)
	}
}
