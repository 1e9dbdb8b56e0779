package postgres

import (
	"github.com/qsidecar/qsidecar/backends/internal/batch"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// Short names of what the engines on servers share.
type (
	cursors   = cursor.Set
	learned   = cursor.Learned
	estimates = batch.Estimates
)

var (
	number = batch.Number
	idOf   = batch.ID
	ms     = batch.MS
	fromMS = batch.FromMS
	pause  = batch.Pause
	known  = batch.Known
	ended  = batch.Ended

	minUrgency, maxUrgency = cursor.Beginning.Urgency, cursor.End.Urgency
)
