package testserver

import (
	"os"
	"testing"
)

// TestPlaces: only servers that need not be durable are in memory, and only where there
// is room.
func TestPlaces(t *testing.T) {
	disk := os.TempDir()
	for _, test := range []struct {
		name, memory, want string
		o                  Options
	}{
		{"none is named", "", disk, Options{}},
		{"a durable one", "/dev/shm", disk, Options{Durable: true}},
		{"it is not there", "/no/such/folder", disk, Options{}},
		{"it has no room", "/proc", disk, Options{}},
	} {
		if got := placeFor(test.o, test.memory); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
