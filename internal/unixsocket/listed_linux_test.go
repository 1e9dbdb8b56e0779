package unixsocket

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSocketIsListedUnderItsPath: systemd-tmpfiles and others keep the sockets that /proc/net/unix lists.
func TestSocketIsListedUnderItsPath(t *testing.T) {
	dir := shortDir(t)
	for _, name := range []string{"q.sock", strings.Repeat("x", MaxPath-len(dir)-1)} {
		g := listenGuarded(t, filepath.Join(dir, name))
		for range 2 {
			all, err := os.ReadFile("/proc/net/unix")
			do(t, err)
			if !strings.Contains(string(all), " "+g.Path+"\n") {
				t.Errorf("/proc/net/unix doesn't list %s", g.Path)
			}
			do(t, os.Remove(g.Path)) // and again after it was bound again
			g.check()
		}
	}
}
