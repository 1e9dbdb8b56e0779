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
	row := backends.Heartbeat{Name: "host:1", Version: "1.0 (x=y)", Jobs: 7, Timeout: time.Minute, DepthLeader: true}.RowName()
	if name, version, jobs := backends.RowInfo(row); name != "host:1" || version != "1.0_(x=y)" || jobs != 7 || backends.TimeoutOf(row) > 61*time.Second {
		t.Errorf("%q: %q, %q, %d", row, name, version, jobs)
	}
	if name, version, jobs := backends.RowInfo("host:1 +lease_ms=30 +depths"); name != "host:1" || version != "" || jobs != -1 {
		t.Errorf("of an older sidecar: %q, %q, %d", name, version, jobs)
	}
	for _, row := range []string{"host:1", "host:1 +depths", "host +lease_ms=x"} {
		if lease := backends.TimeoutOf(row); lease != time.Hour {
			t.Errorf("%q: a lease of %v, want the longest", row, lease)
		}
	}
}
