package sqlserver

import (
	"slices"
	"testing"
)

// TestGatesAreLockedFirst: without row versions a commit locks the gates before it changes jobs. Otherwise it could wait for the gate of a
// claim that waits for these jobs.
func TestGatesAreLockedFirst(t *testing.T) {
	t.Parallel()
	s := &Store{sql: render(defaultSchema)}
	for versions, want := range map[bool][]string{false: {"lock_gates", "ack"}, true: {"ack", "lock_gates"}} {
		s.server.versions = versions
		x := &tx{s: s}
		x.add(s.sql.ack, nil)
		x.lockGates([]string{"q"})
		var got []string
		for _, c := range x.calls {
			got = append(got, c.name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("with row versions %v the order is %q, want %q", versions, got, want)
		}
	}
}
