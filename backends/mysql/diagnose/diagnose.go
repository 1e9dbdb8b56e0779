// Package diagnose contains the operator tooling of the MySQL engine, apart from the hot path: what
// `qsidecar check` examines, and how the engine describes and reads tables that another application owns.
// It uses a mysql.Store through the methods in backends/mysql/diagnostics.go, and package migrate. Package
// mysql must not import it. Start reading at New and Engine.Examine.
package diagnose

import (
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/mysql"
)

// Engine is an open database with its diagnostics. It is a backends.Examiner, a backends.Advisor and a
// backends.Replicator, and has all methods of the Store.
type Engine struct {
	*mysql.Store
	HostClocks time.Duration // how far the clocks of the address's hosts can be apart before it is an error; tests change it

	database string // Info.Database as Examine read it
}

var _ interface {
	backends.Adopter
	backends.Examiner
	backends.Advisor
	backends.Replicator
} = (*Engine)(nil)

// New adds the diagnostics to a Store.
func New(s *mysql.Store) *Engine { return &Engine{Store: s, HostClocks: checks.HostClocks} }

// Info implements backends.Backend. A Store that was opened with Options.Look has not read the id of the
// database, but Examine has.
func (x *Engine) Info() backends.Info {
	i := x.Store.Info()
	if i.Database == "" {
		i.Database = x.database
	}
	return i
}
