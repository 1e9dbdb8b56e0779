package protocol

import (
	"maps"
	"slices"
	"strings"
)

// OpNames returns the ops of the table.
func OpNames() []Op { return slices.Sorted(maps.Keys(ops)) }

// FieldNames returns the names of all fields of requests and replies.
func FieldNames() []string {
	all := map[string]bool{}
	add := func(names map[string]entry) {
		for name := range names {
			if !strings.HasSuffix(name, "_b64") {
				all[name] = true
			}
		}
	}
	add(requestMessage.index)
	add(jobMessage.index)
	add(replyMessage.index)
	add(errorMessage.index)
	add(enqueuedMessage.index)
	add(claimedMessage.index)
	add(viewMessage.index)
	add(failureMessage.index)
	add(statMessage.index)
	return slices.Sorted(maps.Keys(all))
}
