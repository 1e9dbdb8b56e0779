package bridge

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// TestForgedTokenOfAClaimOnItsWay: what is said of a lease that was never given out changes
// nothing of the claim on its way that has the same token. The claim was forgotten: its
// worker was told that the beat is late, and the job went back (TestBadInput, once).
func TestForgedTokenOfAClaimOnItsWay(t *testing.T) {
	l := newLedger(func(*backends.Job) string { return "" })
	slots := []backends.Slot{{Token: backends.Token{Host: 1, Number: 7}}}
	forged := []backends.Lease{{Job: "5", Token: slots[0].Token}}
	sess := new(account)
	l.expect(slots)
	marked, _ := l.settling(forged, nil, nil)
	if len(l.snapshot()) > 0 {
		t.Error("what is on its way must be in the database already")
	}
	l.settled(marked, forged)
	if !l.bind(forged, sess, 10, func() {}) {
		t.Error("the bind was refused for its number")
	}
	l.bound(forged, forged)
	l.unbind(forged)
	l.gone(forged)
	if len(l.snapshot()) > 0 {
		t.Error("what is on its way must be in the database already, after a forged bind")
	}
	jobs := []backends.Job{{ID: "9", Queue: "q", Token: slots[0].Token}}
	if !l.give(jobs, sess, false) {
		t.Fatal("the claim was forgotten")
	}
	if got := l.sessions[sess][slots[0].Token]; got == nil || got.lease.Job != "9" || got.onItsWay {
		t.Errorf("the session holds %+v", got)
	}
	// Claims that were not handed out are forgotten as ever.
	l.expect(slots)
	l.leaving([]backends.Lease{jobs[0].Lease()})
	l.gone([]backends.Lease{jobs[0].Lease()})
	if n := l.count(); n != 0 {
		t.Errorf("%d claims are known", n)
	}
}
