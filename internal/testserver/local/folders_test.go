package local

import (
	"os"
	"testing"
)

// TestTempDirIsInMemory checks that data is in memory if it needs no disk and there is enough space.
func TestTempDirIsInMemory(t *testing.T) {
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
		if got := chooseTempDir(test.disk, test.memory); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
