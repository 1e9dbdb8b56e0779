package mysql

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/claim"
)

// StartClaims implements core.OwnClaimer.
func (t *tx) StartClaims(sidecar backends.Identity, all []backends.Claim, careful *core.Careful) core.Claims {
	return t.s.finder.Start(claim.Tx{Script: &t.Script, Flush: t.Flush, Now: &t.now, Wrote: &t.wrote}, t.o.Queues, sidecar, all, careful)
}
