package journeys

import (
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestReload checks that a good config applies as a whole while a worker holds a job. A bad one
// changes nothing, not even its valid part, and its error is reported until a good one comes.
func TestReload(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  mail: {}\n"
	a := s.Start("a")
	first, c := a.ReadConfig(), a.Dial()
	c.Put("mail", "held")
	held := c.ClaimOne("mail")
	c.MustFail("unknown_queue", kit.Msg{"op": "enqueue", "queue": "letters"})

	a.WriteConfig(first + "  letters: {}\n")
	c.Must(kit.Msg{"op": "reload"})
	c.Put("letters", "x")

	bad := first + "  letters: {}\n  parcels: {}\n  slow: {timeuot: 1s}\n"
	a.WriteConfig(bad)
	if e := c.MustFail("bad_request", kit.Msg{"op": "reload"}); !strings.Contains(e.Message, "timeuot") {
		t.Errorf("the bad config is reported as %q", e.Message)
	}
	a.Signal(syscall.SIGHUP)
	testwait.Until(t, "the status names the mistake", func() bool {
		return strings.Contains(c.Must(kit.Msg{"op": "status"}).ConfigError, "timeuot")
	})
	c.MustFail("unknown_queue", kit.Msg{"op": "enqueue", "queue": "parcels"})
	c.Put("letters", "y")

	a.WriteConfig(strings.Replace(bad, "timeuot", "timeout", 1))
	a.Signal(syscall.SIGHUP)
	// The status is updated after the queues.
	testwait.Until(t, "the status names no mistake any more", func() bool {
		return c.Must(kit.Msg{"op": "status"}).ConfigError == ""
	})
	c.Put("parcels", "z")
	c.Must(kit.Msg{"op": "ack", "lease": held.Lease})
}
