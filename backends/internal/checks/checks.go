// Package checks is what the engines' diagnose packages share: it runs the checks of
// `qsidecar check` one after another, and formulates the findings that every engine has.
// It uses package backends, and no engine. Start reading at Examination.Run.
package checks

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// The values from which a finding is a warning.
const (
	ClockOffset    = 2 * time.Second  // between the clocks of the server and of this host
	OldTransaction = 10 * time.Minute // the age of a transaction of any program
)

// Check is one topic of an examination.
type Check struct {
	Topic string
	Run   func(ctx context.Context) error
	// NeedsTables leaves the check out while there are no tables.
	NeedsTables bool
}

// Examination collects the findings of one call of Examine.
type Examination struct {
	backends.Findings
	Version int // of the tables; 0: there are none, or none that the login can read
}

// Run runs the checks in their order. If one fails, its findings are replaced by the
// finding that unseen returns for the error. An error for which unseen returns nil ends
// the run.
func (e *Examination) Run(ctx context.Context, all []Check, unseen func(c Check, err error) *backends.Finding) error {
	for _, c := range all {
		if c.NeedsTables && e.Version == 0 {
			continue
		}
		before := len(e.Findings)
		err := c.Run(ctx)
		if err == nil {
			continue
		}
		f := unseen(c, err)
		if f == nil || ctx.Err() != nil {
			return err
		}
		f.Topic, f.Text = c.Topic, "this could not be checked: "+f.Text
		e.Findings = append(e.Findings[:before], *f)
	}
	return nil
}

// What to do about missing rights.
const (
	OwnerMigrates = "have a user with that right run what `qsidecar migrate --print --role ROLE` prints, with the same --config and the role of this sidecar"
	OwnerGrants   = "have a user with that right run the GRANTs that `qsidecar migrate --print --role ROLE` ends with, with the same --config and the role of this sidecar"
)

// TablesFound adds the finding for tables of a version. where names their schema, and can
// be empty. allowed states whether this login can update them.
func (e *Examination) TablesFound(version, latest int, where, allowed string) {
	text := "the tables" + where
	switch {
	case version < latest:
		text += fmt.Sprintf(" are of version %d: serve or `qsidecar migrate` will update them to %d%s", version, latest, allowed)
	case version > latest:
		text += fmt.Sprintf(" are of version %d, which is newer than this program's (%d) and works with it", version, latest)
	default:
		text += fmt.Sprintf(" exist, of version %d", version)
	}
	e.AddInfo("schema", text)
}

// ForeignTrigger adds the finding for a trigger that is not the sidecar's. refused ends the
// sentence "if it …", and guard names what can reject plain INSERTs instead.
func (e *Examination) ForeignTrigger(what, refused, guard string) {
	e.AddWarning("triggers", what+" is not the sidecar's: it runs in the sidecar's transactions, and if it "+refused,
		"keep it short, and let it refuse only changes that no program should make; "+guard+" is a better guard for plain INSERTs")
}

// MostOverdue is how many overdue jobs of one kind the checks find at most.
const MostOverdue = 1000

// Overdue adds the finding about jobs of a queue that maintenance had to change more than a minute ago: claimed ones, or
// scheduled ones.
func (e *Examination) Overdue(queue, state string, jobs int64, example string) {
	what := "are still claimed although their claims ended"
	if state == "scheduled" {
		what = "are still scheduled although their time came"
	}
	count := fmt.Sprint(jobs)
	if jobs >= MostOverdue {
		count = "at least " + count
	}
	e.AddWarning("maintenance", fmt.Sprintf("the queue %s has %s jobs that %s more than a minute ago, for example %s", queue, count, what, example),
		"run a sidecar; if one runs, `qsidecar status` lists what the database refuses: a trigger, a CHECK or a missing right is in the way")
}

// CompareClocks adds the finding about the server's clock. offset is how far it is ahead of this
// host's. It was measured with an uncertainty of ± margin. A warning needs an offset of at
// least limit.
func (e *Examination) CompareClocks(offset, margin, limit time.Duration) {
	text := fmt.Sprintf("the server's clock and this host's differ by %v", max(offset.Abs().Round(time.Millisecond), time.Millisecond))
	if offset.Abs()-margin < limit {
		e.AddInfo("clock", text)
		return
	}
	side := "behind"
	if offset > 0 {
		side = "ahead"
	}
	e.AddWarning("clock", text+" (the server's is "+side+"): every time is the server's, so jobs with a run_at of this host come late or early",
		"have both machines keep their clocks by NTP")
}
