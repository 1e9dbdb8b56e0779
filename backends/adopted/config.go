package adopted

import "github.com/qsidecar/qsidecar/backends/adopted/mapping"

// Table and these types are what a config says of an adopted queue. Package mapping defines them.
type (
	Table    = mapping.Table
	Role     = mapping.Role
	Value    = mapping.Value
	Ordering = mapping.Ordering
	Token    = mapping.Token
	OnAck    = mapping.OnAck
	Misfit   = mapping.Misfit
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
