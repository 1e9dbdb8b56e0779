package adopted

import "github.com/qsidecar/qsidecar/backends/adopted/mapping"

// Package mapping defines the config of an adopted queue: these types and constants.

type (
	// Table is the mapping of a queue as the user wrote it.
	Table = mapping.Table
	// Role is the meaning of a column to a queue.
	Role = mapping.Role
	// Value is a constant, as a column holds it.
	Value = mapping.Value
	// Ordering is a column of the order of claims.
	Ordering = mapping.Ordering
	// Token is a column by which the table's own consumers find the rows that they claimed.
	Token = mapping.Token
	// OnAck is what an ack does to the row.
	OnAck = mapping.OnAck
	// Misfit is one thing in which a mapping does not fit its table.
	Misfit = mapping.Misfit
)

// The roles.
const (
	ID         = mapping.ID
	Payload    = mapping.Payload
	State      = mapping.State
	Attempts   = mapping.Attempts
	OwnLimit   = mapping.OwnLimit
	Priority   = mapping.Priority
	RunAt      = mapping.RunAt
	Worker     = mapping.Worker
	Error      = mapping.Error
	Result     = mapping.Result
	CreatedAt  = mapping.CreatedAt
	ClaimedAt  = mapping.ClaimedAt
	FinishedAt = mapping.FinishedAt
	FailedAt   = mapping.FailedAt
	Headers    = mapping.Headers
)

// The values of OnAck and of Table.Unit.
const (
	Update       = mapping.Update
	Delete       = mapping.Delete
	Archive      = mapping.Archive
	Seconds      = mapping.Seconds
	Milliseconds = mapping.Milliseconds
)

// Roles lists the roles that a config can name.
var Roles = mapping.Roles
