package backends

import "context"

// Examiner is a Backend that can say how fit its database is for the work:
// `qsidecar check` asks it.
//
// Each engine's Options have a Look: with it Open makes and changes nothing in the
// database, and succeeds where tables are missing or old; all that such a Backend
// is good for is Examine, Info and Close.
type Examiner interface {
	// Examine looks at the server, its settings, the rights of this login and the
	// plan of the real claim statement for one of the queues, and changes nothing. It
	// returns everything it found, in an order fit for reading. What could not be
	// looked at (a missing right) is a finding too; an error is returned only where
	// the database cannot be asked at all.
	Examine(ctx context.Context, queues []Policy) ([]Finding, error)
}

// Finding is one thing that an examination found.
type Finding struct {
	Severity Severity
	Topic    string // one word: server, claim, plan, isolation, durability, clock, rights, …
	Text     string // what is so, in one sentence
	Fix      string // what to do about it, in one sentence; empty where nothing need be done
}

// Grade says how much a finding matters.
type Severity int

// The grades, from least to most. A server that was set to be less durable than it
// could is Advice: what the sidecar promises is what the server keeps (design.md §2.1).
const (
	SeverityInfo    Severity = iota // good to know
	SeverityWarning                 // works, and could be better or safer
	SeverityError                   // a promise of the sidecar cannot be kept, or it will not start
)

func (g Severity) String() string {
	switch g {
	case SeverityInfo:
		return "fact"
	case SeverityWarning:
		return "advice"
	}
	return "problem"
}

// Findings collects what an examination finds.
type Findings []Finding

// Fact adds what is good to know.
func (f *Findings) AddInfo(topic, text string) {
	*f = append(*f, Finding{SeverityInfo, topic, text, ""})
}

// Advice adds what could be better, and how.
func (f *Findings) AddWarning(topic, text, do string) {
	*f = append(*f, Finding{SeverityWarning, topic, text, do})
}

// Problem adds what cannot stay as it is, and what to do.
func (f *Findings) AddError(topic, text, do string) {
	*f = append(*f, Finding{SeverityError, topic, text, do})
}
