package adopted

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Role is what a column means to a queue.
type Role string

// The roles. Any but ID may be missing.
const (
	ID         Role = "id"
	Payload    Role = "payload" // several columns: a JSON map of their texts
	State      Role = "state"
	Attempts   Role = "attempts"
	OwnLimit   Role = "max_attempts" // the row's; NULL: the queue's
	Priority   Role = "priority"
	RunAt      Role = "run_at"
	Worker     Role = "worker"
	Error      Role = "error"
	Result     Role = "result"
	CreatedAt  Role = "created_at"
	ClaimedAt  Role = "claimed_at"
	FinishedAt Role = "finished_at"
	FailedAt   Role = "failed_at" // when it died; without states.dead a row with it is dead
	Headers    Role = "headers"   // columns, each under its own name

	token Role = "token" // Table.Token's
)

// Roles are all of them, as a config names them.
var Roles = []Role{ID, Payload, State, Attempts, OwnLimit, Priority, RunAt, Worker, Error, Result, CreatedAt, ClaimedAt, FinishedAt, FailedAt, Headers}

// Table says how a queue lives in a table that somebody else owns.
type Table struct {
	Schema  string // empty: where the login looks
	Name    string
	Columns map[Role][]string
	States  map[backends.State]Value // ready, claimed, done, dead
	Where   map[string]Value         // column → value of every row of the queue
	Order   []Ordering               // empty: the higher priority, then CreatedAt and ID
	LIFO    bool                     // with an empty Order: the newest first
	Token   *Token                   // nil: none

	// Deliveries: the attempts column counts deliveries, and is written by the
	// claim; else it counts failures.
	Deliveries bool
	// MaxAttempts is the queue's: a row with so many is dead. 0: not known.
	MaxAttempts int
	// UTC: the owner writes times that name no zone in UTC, not in the server's zone.
	UTC bool
	// Unit is how many milliseconds one is in columns of whole numbers that hold times as
	// those since 1970: Seconds or Milliseconds. 0: the type of each has to say it.
	Unit int64
	// OnAck says what an ack does.
	OnAck OnAck
	// Archive, with the OnAck of that name, is where the row moves: as far as both
	// tables have its columns.
	ArchiveSchema, Archive string
	// Notify is the channel in which its owner's programs notify of new jobs, as the
	// server has its name; empty: none.
	Notify string
	// StuckAfter, where it is > 0, is when a row that its own consumers claimed is
	// ready again. It needs ClaimedAt.
	StuckAfter time.Duration
	// Keep and KeepDead, where they are > 0, are for how long rows stay that are done (or
	// in the archive) and dead. They need FinishedAt. 0: they stay; it is their owner's to
	// clear them.
	Keep, KeepDead time.Duration
	// Hold: a job's row is locked in a transaction that is open until it is settled, and
	// says nothing.
	Hold bool
}

// Value is a constant of a config, as a column holds it.
type Value struct {
	Text string
	Null bool
}

// Ordering is a column that claims go by.
type Ordering struct {
	Column     string
	Descending bool
}

// Token is a column by which the table's own consumers find the rows that they
// took. The sidecar writes one of the numbers From to To there; or Text.
type Token struct {
	Column   string
	Text     string
	From, To int64
}

// OnAck is what becomes of the row of a job that is done.
type OnAck int

// Update sets the state done, Delete deletes the row, Archive moves it.
const (
	Update OnAck = iota
	Delete
	Archive
)
