package quota

import (
	"slices"
	"testing"
	"time"
)

// TestNamesAreForgotten shows that names of empty queues are removed for new ones, that names of queues with jobs
// stay, and that each user has a limit of its own.
func TestNamesAreForgotten(t *testing.T) {
	var n QueueNames
	at := time.Now()
	for i, name := range []string{"a", "b", "c", "a", "b"} {
		if ok, look := n.Use(name, 1, 4); !ok || look != (i == 2) {
			t.Errorf("name %s: %v, look %v", name, ok, look)
		}
	}
	n.Use("d", 1, 4)
	if ok, _ := n.Use("e", 1, 4); ok {
		t.Error("a user has five names, and may have four")
	}
	if ok, look := n.Use("e", 2, 4); !ok || look {
		t.Errorf("another user's first name: %v, look %v", ok, look)
	}
	later := at.Add(time.Hour)
	n.all["c"].used = later.Add(-time.Second)
	gone := n.Forget(later, func(name string) bool { return name == "b" })
	slices.Sort(gone)
	if want := []string{"a", "d", "e"}; !slices.Equal(gone, want) {
		t.Errorf("forgot %v, want %v", gone, want)
	}
	for _, name := range []string{"f", "g"} {
		if ok, _ := n.Use(name, 1, 4); !ok {
			t.Errorf("no room for %s after two were forgotten", name)
		}
	}
}
