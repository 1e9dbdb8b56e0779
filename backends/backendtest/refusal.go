package backendtest

import (
	"fmt"
	"strings"
)

// Refusal describes changes of jobs that the database refuses, as a trigger of the owner can.
type Refusal struct {
	Queue    string
	Priority int16  // not 0: only of its jobs with this priority
	Worker   string // not empty: only claims for this worker
	Reason   string // the error contains it
}

// On lists the statements to refuse.
func (r Refusal) On() []string {
	if r.Worker != "" {
		return []string{"UPDATE"} // a deletion has no new worker
	}
	return []string{"UPDATE", "DELETE"}
}

// When is the condition of the trigger. literal quotes a text.
func (r Refusal) When(literal func(string) string) string {
	all := []string{"OLD.queue = " + literal(r.Queue)}
	if r.Priority != 0 {
		all = append(all, fmt.Sprintf("OLD.priority = %d", r.Priority))
	}
	if r.Worker != "" {
		all = append(all, "NEW.worker = "+literal(r.Worker))
	}
	return strings.Join(all, " AND ")
}
