package backends_test

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestRow: a sidecar's row name holds the timeout of its heartbeats. That of an older sidecar does not.
func TestRow(t *testing.T) {
	for _, reads := range []bool{false, true} {
		row := backends.Heartbeat{Name: "host:1", Timeout: 90 * time.Second, DepthLeader: reads}.RowName()
		if lease := backends.TimeoutOf(row); lease < 90*time.Second || lease > 91*time.Second || backends.IsDepthLeader(row) != reads {
			t.Errorf("%q: a lease of %v, reads: %t", row, lease, backends.IsDepthLeader(row))
		}
	}
	for _, row := range []string{"host:1", "host:1 +depths", "host +lease_ms=x"} {
		if lease := backends.TimeoutOf(row); lease != time.Hour {
			t.Errorf("%q: a lease of %v, want the longest", row, lease)
		}
	}
}
