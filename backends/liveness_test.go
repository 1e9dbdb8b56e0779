package backends_test

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestRow: a sidecar's row tells how long its beats last, and an older sidecar's does not.
func TestRow(t *testing.T) {
	for _, reads := range []bool{false, true} {
		row := backends.Beat{Name: "host:1", Lease: 90 * time.Second, Reads: reads}.Row()
		if lease := backends.LeaseOf(row); lease < 90*time.Second || lease > 91*time.Second || backends.Reads(row) != reads {
			t.Errorf("%q: a lease of %v, reads: %t", row, lease, backends.Reads(row))
		}
	}
	for _, row := range []string{"host:1", "host:1 +depths", "host +lease_ms=x"} {
		if lease := backends.LeaseOf(row); lease != time.Hour {
			t.Errorf("%q: a lease of %v, want the longest", row, lease)
		}
	}
}
