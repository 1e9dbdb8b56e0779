package system

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestSecondSidecarOnOneSocket checks that a second sidecar on a socket fails, and the first one
// continues.
func TestSecondSidecarOnOneSocket(t *testing.T) {
	s := kit.NewSite(t)
	a := s.Start("a")
	second := s.Sidecar("a")
	second.LogFile += ".second"
	second.Launch()
	if code := second.WaitExit(); code == 0 {
		t.Errorf("the second sidecar on one socket exited with 0:\n%s", second.Log())
	}
	a.Dial().Must(kit.Msg{"op": "ping"})
}
