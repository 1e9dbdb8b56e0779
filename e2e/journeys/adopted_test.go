package journeys

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestAdoptedTable: workers of a sidecar and a table's own consumers work the same rows,
// through the deaths of some of each and of a sidecar.
func TestAdoptedTable(t *testing.T) {
	t.Parallel()
	_, p := kit.NewPostgresSite(t)
	kit.SystemE.Run(t, kit.TableServer{Database: p.Database, Leases: "qsidecar.qsidecar_leases", Addr: p.Addr}, 100)
}
