package bridge

import (
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// TestLateConnectionOfARemovedSocket shows that a connection that was accepted while a reload removed its socket
// is closed like the others. Before, it stayed open, with all rights.
func TestLateConnectionOfARemovedSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		gone := filepath.Join(filepath.Dir(o.Sockets[0].Path), "gone.sock")
		s := start(t, with(o, func(o *Options) { o.Sockets = append(o.Sockets, Socket{Path: gone}) }))
		s.reloads(t, o)
		if sess, full := s.open(nil, nil, nil, gone, &unixsocket.Peer{}); sess != nil || full != nil {
			t.Errorf("a session on a socket that is not configured any more: %v, %v", sess, full)
		}
	})
}
