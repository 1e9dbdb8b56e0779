package mapping

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Role is the meaning of a column to a queue.
type Role string

// The roles. Only ID is required.
const (
	ID         Role = "id"
	Payload    Role = "payload" // several columns: a JSON map of their texts
	State      Role = "state"
	Attempts   Role = "attempts"
	OwnLimit   Role = "max_attempts" // the row's own limit; NULL: the queue's
	Priority   Role = "priority"
	RunAt      Role = "run_at"
	Worker     Role = "worker"
	Error      Role = "error"
	Result     Role = "result"
	CreatedAt  Role = "created_at"
	ClaimedAt  Role = "claimed_at"
	FinishedAt Role = "finished_at"
	FailedAt   Role = "failed_at" // when the job died; without states.dead a row with it is dead
	Headers    Role = "headers"   // columns, each under its own name

	// TokenRole is the role of Token.Column. A config does not name it.
	TokenRole Role = "token"
)

// Roles lists the roles that a config can name.
var Roles = []Role{ID, Payload, State, Attempts, OwnLimit, Priority, RunAt, Worker, Error, Result, CreatedAt, ClaimedAt, FinishedAt, FailedAt, Headers}

var (
	timeRoles  = []Role{RunAt, CreatedAt, ClaimedAt, FinishedAt, FailedAt}
	claimRoles = []Role{Worker, ClaimedAt, TokenRole}
	// writtenRoles are the roles whose columns claims and settles write.
	writtenRoles = []Role{State, Attempts, RunAt, Worker, Error, Result, ClaimedAt, FinishedAt, FailedAt, TokenRole}
)

// configKey is the key of the config that names the role's column.
func (r Role) configKey() string {
	if r == TokenRole {
		return "token.column"
	}
	return "columns." + string(r)
}

// Table is the mapping of a queue as the user wrote it.
type Table struct {
	Schema  string // empty: where the login looks for names
	Name    string
	Columns map[Role][]string
	States  map[backends.State]Value // ready, claimed, done, dead
	Where   map[string]Value         // column → value of every row of the queue
	Order   []Ordering               // empty: the higher priority, then CreatedAt and ID
	LIFO    bool                     // with an empty Order: the newest first
	Token   *Token                   // nil: none

	// Deliveries: the attempts column counts deliveries, and the claim writes it.
	// Without it the column counts failures.
	Deliveries bool
	// MaxAttempts is the queue's limit: a row with so many attempts is dead. 0: unknown.
	MaxAttempts int
	// UTC: the owner writes times that name no zone in UTC, not in the server's zone.
	UTC bool
	// Unit is the number of milliseconds in one unit of a time in a column of whole numbers:
	// Seconds or Milliseconds since 1970. 0: the type of each column has to imply it.
	Unit int64
	// OnAck is what an ack does to the row.
	OnAck OnAck
	// Archive is the table that OnAck Archive moves rows to. Columns that both tables have
	// are copied.
	ArchiveSchema, Archive string
	// Notify is the channel on which the owner's programs announce new jobs, spelled as the
	// server has it. Empty: none.
	Notify string
	// StuckAfter > 0: a row that the owner's consumers claimed longer ago is made ready
	// again. It needs ClaimedAt.
	StuckAfter time.Duration
	// RetainDone and RetainDead > 0: how long rows stay that are done (or in the archive) and dead.
	// They need FinishedAt. 0: the sidecar never deletes them.
	RetainDone, RetainDead time.Duration
	// ClaimInTx: a claim locks the row in a transaction that stays open until the job is settled.
	// The row itself shows nothing.
	ClaimInTx bool
}

// Value is a constant of a config, as a column holds it.
type Value struct {
	Text string
	Null bool
}

// Ordering is a column of the order of claims.
type Ordering struct {
	Column     string
	Descending bool
}

// Token is a column by which the table's own consumers find the rows that they claimed. A
// claim writes Text there, or a number between From and To.
type Token struct {
	Column   string
	Text     string
	From, To int64
}

// OnAck is what an ack does to the row.
type OnAck int

// Update sets the state done, Delete deletes the row, Archive moves it to another table.
const (
	Update OnAck = iota
	Delete
	Archive
)

// The values of Table.Unit.
const (
	Seconds      int64 = 1000
	Milliseconds int64 = 1
)
