// Package lease has the rows of qsidecar_leases, the sidecar's own table beside adopted ones.
// A row holds what a job's own row has no column for: the claim, the back-off, the failures.
// It is written in the transaction that changes the job's row.
//
// The package uses the dialect of an engine and the roles of package mapping. Start reading at
// Lease; the SQL is in rows.go.
package lease

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

const (
	// Table is the name of the table.
	Table = "qsidecar_leases"

	// Never marks a dead job, as its NotBefore.
	Never = math.MaxInt64

	// maxFailures is the number of failures of a job that are kept: the latest.
	maxFailures = 50
)

// Lease is a row of the table: a claim, and what is kept about a job until it is settled. All
// times are milliseconds since 1970; 0 means unset.
type Lease struct {
	ID          int64
	Queue, Item string // Item is the job's id
	Fence       int64
	Attempts    int // deliveries that count
	Losses      int
	NotBefore   int64

	Limit               int
	Backoff, BackoffMax int64 // milliseconds

	Sidecar, Number int64 // the token; Host 0: there is no claim
	Owner           int64
	Length          int64 // milliseconds; 0: a session lease
	Deadline        int64 // of the job's run
	DueAt           int64
	ClaimedAt       int64
	Worker          string
	Shown           map[mapping.Role]string // what the claim wrote into the job's row
	Before          map[mapping.Role]string // what the row had there before, if that wasn't NULL; a dead row's stays
	Failures        []Failure

	Now     int64 // when the row was read
	Changed int64 // when the row was written
	Stored  bool  // the row exists
	InTx    bool  // the claim is an open transaction: the job's row is locked and shows nothing
}

// Failure is a failed attempt as the row keeps it.
type Failure struct {
	Attempt int            `json:"attempt"`
	Cause   backends.Cause `json:"cause"`
	Message string         `json:"message,omitempty"`
	At      int64          `json:"at"`
}

// New is a lease of a job without a row, with a random ID.
func New(queue, item string) *Lease {
	l := &Lease{Queue: queue, Item: item}
	for l.ID <= 0 {
		var raw [8]byte
		rand.Read(raw[:]) // never fails
		l.ID = int64(binary.BigEndian.Uint64(raw[:]) >> 1)
	}
	return l
}

// Handle is the Lease.Job of an adopted job. The id of a managed job never begins with a letter.
func (l *Lease) Handle() string { return "a" + strconv.FormatInt(l.ID, 10) }

// ParseHandle returns the ID of the lease with that handle; ok is false for a managed job.
func ParseHandle(job string) (id int64, ok bool) {
	digits, ok := strings.CutPrefix(job, "a")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseInt(digits, 10, 64)
	return id, err == nil && id > 0 && strconv.FormatInt(id, 10) == digits
}

// Proof is the lease that the claim gave to the worker.
func (l *Lease) Proof() backends.Lease {
	return backends.Lease{Job: l.Handle(), Token: backends.Token{Sidecar: backends.Identity(l.Sidecar), Number: uint64(l.Number)}}
}

// ProvedBy reports whether p is the lease that the claim gave to the worker. owner, if it is not
// 0, also has to be the claim's.
func (l *Lease) ProvedBy(p backends.Lease, owner backends.Identity) bool {
	return l.Sidecar != 0 && l.Proof() == p && (owner == 0 || l.Owner == int64(owner))
}

// AttemptState is what the rules of attempts ask for.
func (l *Lease) AttemptState() backends.AttemptState {
	return backends.AttemptState{
		Attempts: l.Attempts, Limit: l.Limit, Losses: l.Losses,
		Backoff: time.Duration(l.Backoff) * time.Millisecond, BackoffMax: time.Duration(l.BackoffMax) * time.Millisecond,
	}
}

// EndClaim removes the claim from the lease.
func (l *Lease) EndClaim() {
	l.Sidecar, l.Number, l.Owner, l.Length, l.Deadline, l.DueAt, l.ClaimedAt = 0, 0, 0, 0, 0, 0, 0
	l.Worker, l.Shown, l.Before = "", nil, nil
}

// SetDue sets when maintenance has to end the claim: at the end of a timed lease, or at the
// run's deadline if that is earlier.
func (l *Lease) SetDue() {
	l.DueAt = l.Deadline
	if end := l.Now + l.Length; l.Length > 0 && (l.Deadline == 0 || end < l.Deadline) {
		l.DueAt = end
	}
}

// AddFailure keeps a failure.
func (l *Lease) AddFailure(f Failure) {
	l.Failures = append(l.Failures, f)
	l.Failures = l.Failures[max(0, len(l.Failures)-maxFailures):]
}

// LastError is the message of the last failure, or its cause if it has none.
func (l *Lease) LastError() string {
	if len(l.Failures) == 0 {
		return ""
	}
	f := l.Failures[len(l.Failures)-1]
	if f.Message == "" {
		return string(f.Cause)
	}
	return f.Message
}

// empty reports whether the row has nothing to keep.
func (l *Lease) empty() bool {
	return l.Sidecar == 0 && l.Attempts == 0 && l.Losses == 0 && l.NotBefore == 0 && len(l.Failures) == 0
}
