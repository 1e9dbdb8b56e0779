package table

import (
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
)

// letters begin the `segment` of each state's jobs, as ../../migrate/schema.sql defines it.
var letters = map[backends.State]string{
	backends.StateReady: "r", backends.StateScheduled: "s", backends.StateClaimed: "c", backends.StateDone: "d", backends.StateDead: "x",
}

// StateSegment returns the `segment` of a queue's jobs in a state other than claimed.
func StateSegment(state backends.State, queue string) string { return letters[state] + queue }

// StateSegments returns the ends of the range with each `segment` of a state: from <= segment < to.
func StateSegments(state backends.State) (from, to string) {
	return letters[state], string(letters[state][0] + 1)
}

// OwnerSegment returns the `segment` of the jobs that a sidecar has claimed.
func OwnerSegment(host int64) string {
	return letters[backends.StateClaimed] + fmt.Sprintf("%016X", uint64(host))
}
