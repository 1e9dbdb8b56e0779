package postgres

import "github.com/qsidecar/qsidecar/backends/internal/core"

// Short names for identifiers of package core.
var (
	ms    = core.MS
	pause = core.Pause
	known = core.Known
	ended = core.Interrupted
)

const (
	maxTries   = core.MaxTries
	retryPause = core.RetryPause
)
