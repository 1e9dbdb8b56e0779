package backends

import "context"

// Examiner checks a database for `qsidecar check`. The diagnose package of each engine has
// one.
//
// With Options.Look an engine's Open creates and changes nothing in the database, and
// succeeds if tables are missing or old. Only Examine, Info and Close work then. If the
// tables exist, so do the methods of Advisor, Stats and Query, also on a replica.
type Examiner interface {
	// Examine checks the server, its settings, the rights of this login, and the plan of
	// the statement that claims jobs of one of the queues. It changes nothing. It returns
	// all findings in an order fit for reading. A check that the server refuses (a missing
	// right) is a finding too. An error means that the database can't be queried at all.
	Examine(ctx context.Context, queues []Policy) ([]Finding, error)
}

// Finding is one result of Examine.
type Finding struct {
	Severity Severity
	Topic    string // one word: server, claim, plan, isolation, durability, clock, rights, …
	Text     string // the fact, in one sentence
	Fix      string // what to do about it, in one sentence; empty: nothing
}

// Severity is how much a finding matters.
type Severity int

// The severities, from least to most. A server that is configured to be less durable is a
// warning: the sidecar promises the durability that its server is configured for.
const (
	SeverityInfo    Severity = iota // good to know
	SeverityWarning                 // it works, and could be better or safer
	SeverityError                   // the sidecar can't keep a guarantee, or does not start
)

func (s Severity) String() string {
	switch s {
	case SeverityInfo:
		return "info"
	case SeverityWarning:
		return "warning"
	}
	return "error"
}

// Findings collects findings.
type Findings []Finding

// AddInfo adds a finding that is good to know.
func (f *Findings) AddInfo(topic, text string) {
	*f = append(*f, Finding{SeverityInfo, topic, text, ""})
}

// AddWarning adds a finding that could be better, and how.
func (f *Findings) AddWarning(topic, text, fix string) {
	*f = append(*f, Finding{SeverityWarning, topic, text, fix})
}

// AddError adds an error, and what to do about it.
func (f *Findings) AddError(topic, text, fix string) {
	*f = append(*f, Finding{SeverityError, topic, text, fix})
}
