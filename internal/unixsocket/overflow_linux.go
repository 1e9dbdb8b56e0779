package unixsocket

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
)

// overflow is the number that the kernel reports for each user, or group, that this process's user namespace does not
// have (user_namespaces(7)).
type overflow struct {
	id   uint32
	none bool // the namespace has all numbers, so the overflow number is that of a real user
}

func (o overflow) is(id uint32) bool { return !o.none && id == o.id }

var (
	overflowUser  = sync.OnceValue(func() overflow { return readOverflow("/proc/sys/kernel/overflowuid", "/proc/self/uid_map") })
	overflowGroup = sync.OnceValue(func() overflow { return readOverflow("/proc/sys/kernel/overflowgid", "/proc/self/gid_map") })
)

// readOverflow reads the number, and whether the map has all numbers. Without /proc it assumes the usual number, and
// that it stands for others.
func readOverflow(number, idMap string) overflow {
	o := overflow{id: 65534}
	if text, err := os.ReadFile(number); err == nil {
		if n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 32); err == nil {
			o.id = uint32(n)
		}
	}
	text, err := os.ReadFile(idMap)
	if err != nil {
		return o
	}
	var mapped uint64
	for line := range bytes.Lines(text) {
		var inside, outside, count uint64
		if _, err := fmt.Sscan(string(line), &inside, &outside, &count); err == nil {
			mapped += count
		}
	}
	o.none = mapped >= UnknownUser // all numbers but that one
	return o
}

// IsOverflow reports whether no peer has the number, because it stands for the users, or groups, of other user namespaces.
func IsOverflow(id uint32, group bool) bool {
	if group {
		return overflowGroup().is(id)
	}
	return overflowUser().is(id)
}
