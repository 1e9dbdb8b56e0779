package lease

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// TestForgedTokenOfAClaimOnItsWay shows that a request with a lease that was never handed out does not change the
// claim in flight that has the same token. Before, the claim was forgotten: its worker got the error that the
// heartbeat is late, and the job was released (TestBadInput, once).
func TestForgedTokenOfAClaimOnItsWay(t *testing.T) {
	l := NewTable(func(map[string]string) (string, string) { return "", "" })
	slots := []backends.Slot{{Token: backends.Token{Sidecar: 1, Number: 7}}}
	forged := []backends.Lease{{Job: "5", Token: slots[0].Token}}
	sess := new(quota.Session)
	l.Expect(slots)
	marked, _ := l.BeginSettle(forged, nil, nil)
	if len(l.Confirmed()) > 0 {
		t.Error("what is on its way must be in the database already")
	}
	l.EndSettle(marked, forged)
	if !l.Bind(forged, sess, 10, func() {}) {
		t.Error("the bind was refused for its number")
	}
	l.EndBind(forged, forged, nil)
	l.Unbind(forged)
	l.Remove(forged)
	if len(l.Confirmed()) > 0 {
		t.Error("what is on its way must be in the database already, after a forged bind")
	}
	jobs := []backends.Job{{ID: "9", Queue: "q", Token: slots[0].Token}}
	if !l.Give(jobs, sess, false, time.Now()) {
		t.Fatal("the claim was forgotten")
	}
	if got := l.sessions[sess]; got == nil || got.lease.Job != "9" || got.inFlight {
		t.Errorf("the session holds %+v", got)
	}
	// Claims that were not handed out are still forgotten.
	l.Expect(slots)
	l.BeginReturn([]backends.Lease{jobs[0].Lease()})
	l.Remove([]backends.Lease{jobs[0].Lease()})
	if n := l.Count(); n != 0 {
		t.Errorf("%d claims are known", n)
	}
}
