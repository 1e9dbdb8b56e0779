package testserver

import (
	"os"
	"testing"
)

// TestPlaces: what need not be on a disk is in memory, and only where there is room.
func TestPlaces(t *testing.T) {
	disk := os.TempDir()
	for _, test := range []struct {
		name, memory, want string
		disk               bool
	}{
		{"none is named", "", disk, false},
		{"a durable one at full size", "/dev/shm", disk, true},
		{"it is not there", "/no/such/folder", disk, false},
		{"it has no room", "/proc", disk, false},
	} {
		if got := chosen(test.disk, test.memory); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
