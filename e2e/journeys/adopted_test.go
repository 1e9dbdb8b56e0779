package journeys

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
)

// TestAdoptedTable runs workers of sidecars and a table's own consumers on the same rows. It kills
// some of each kind and a sidecar.
func TestAdoptedTable(t *testing.T) {
	t.Parallel()
	_, p := kit.NewPostgresSite(t)
	adopt.SystemE.Run(t, adopt.Server{Database: p.Database, Leases: "qsidecar.qsidecar_leases", Addr: p.Addr}, 100)
}
