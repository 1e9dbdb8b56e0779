package mysql

import (
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// Short names.
type (
	conn    = session.Conn
	script  = session.Script
	result  = session.Result
	instant = session.Instant
)

var (
	list     = session.List
	marks    = session.Marks
	flag     = session.Flag
	positive = session.Positive
	orNull   = session.OrNull

	ownerLane = table.OwnerLane
	within    = table.Within
	among     = table.Among
)

const (
	position   = migrate.Position
	jobs       = table.Jobs
	byID       = table.ByID
	deleteByID = table.DeleteByID
	laneRange  = table.LaneRange
	bytesOf    = table.Bytes
)
