package table

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// letters begin the `segment` of each state's jobs, as ../../migrate/schema.sql defines it.
var letters = map[backends.State]string{
	backends.StateReady: "r", backends.StateScheduled: "s", backends.StateClaimed: "c", backends.StateDone: "d", backends.StateDead: "x",
}

// The letters of blocked jobs, which have a `segment` for each group.
const (
	Unnoticed    = "a" // no sidecar has noticed the job
	Noticed      = "b"
	AfterBlocked = "c"
)

// StateSegment returns the `segment` of a queue's jobs in a state other than claimed and blocked.
func StateSegment(state backends.State, queue string) string { return letters[state] + queue }

// StateSegments returns the ends of the range with each `segment` of a state: from <= segment < to.
func StateSegments(state backends.State) (from, to string) {
	return letters[state], string(letters[state][0] + 1)
}

// OwnerSegment returns the `segment` of the jobs that a sidecar has claimed.
func OwnerSegment(host int64) string {
	return letters[backends.StateClaimed] + fmt.Sprintf("%016X", uint64(host))
}

// GroupSegment returns what follows the letter in the `segment` of a group's blocked jobs.
func GroupSegment(queue, group string) string {
	return queue + "!" + strings.ToUpper(hex.EncodeToString([]byte(group)))
}

// GroupOf returns the group of a `segment` of blocked jobs.
func GroupOf(segment string) core.Group {
	queue, digits, _ := strings.Cut(segment[1:], "!")
	name, _ := hex.DecodeString(digits) // the server has written the digits
	return core.Group{Queue: queue, Name: string(name)}
}

// BlockedIn returns the ends of the range with each `segment` of a queue's groups and a letter: from < segment < to.
func BlockedIn(letter, queue string) (from, to string) {
	return letter + queue + "!", letter + queue + `"`
}

// Blocked returns the condition that a row is a blocked job of a queue.
func Blocked(queue string) session.Part {
	from, to := BlockedIn(Unnoticed, queue)
	from2, to2 := BlockedIn(Noticed, queue)
	return session.Part{SQL: "(segment > ? AND segment < ? OR segment > ? AND segment < ?)", Args: []any{from, to, from2, to2}}
}

// BlockedAfter returns the condition that a row is a blocked job of a queue with this letter, and comes after a job of the group with
// this GroupSegment; empty: any one. following is the condition for the other jobs of that group.
func BlockedAfter(letter, queue, group, following string) session.Part {
	from, to := BlockedIn(letter, queue)
	if group == "" {
		return session.Part{SQL: "segment > ? AND segment < ?", Args: []any{from, to}}
	}
	return session.Part{SQL: "(segment > ? AND segment < ? OR segment = ? AND " + following + ")", Args: []any{letter + group, to, letter + group}}
}
