package quota

import "testing"

// TestSharesOfMemory: the sessions of one process share, and those of unknown processes don't.
func TestSharesOfMemory(t *testing.T) {
	of := func(uid uint32, pid int32) *Session {
		s := NewSession(nil, Owner{UID: uid, PID: pid}, nil)
		return &s
	}
	for _, c := range []struct {
		a, b *Session
		same bool
	}{
		{of(7, 9), of(7, 9), true},
		{of(7, 9), of(7, 10), false},
		{of(7, 9), of(8, 9), false},
		{of(7, 0), of(7, 0), false}, // of two containers, perhaps
		{of(7, 0), of(7, 9), false},
	} {
		if got := c.a.share() == c.b.share(); got != c.same {
			t.Errorf("%v and %v share: %v", c.a.Owner, c.b.Owner, got)
		}
	}
}
