package permission

import (
	"slices"

	"github.com/qsidecar/qsidecar/protocol"
)

// unrestricted are the ops that need no rule: they touch no job, or only release the session's own jobs.
var unrestricted = []protocol.Op{protocol.OpHello, protocol.OpCancelClaim, protocol.OpBye}

// sidecarWide are the ops that concern the sidecar and not a queue. Only a rule that names one of them grants it, so
// that a rule for the users of some queues doesn't also let them see all sessions and reload the config.
var sidecarWide = []protocol.Op{protocol.OpStatus, protocol.OpFleet, protocol.OpCheck, protocol.OpConfig, protocol.OpReload}

// IsSidecarWide reports whether only a rule that names the op grants it.
func IsSidecarWide(op protocol.Op) bool { return slices.Contains(sidecarWide, op) }
