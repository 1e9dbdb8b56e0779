// Package diagnose is the operator tooling of the PostgreSQL engine, apart from the hot
// path: the checks of `qsidecar check`, and the description of tables that another
// application owns. It uses a postgres.Store through the methods in
// backends/postgres/diagnostics.go, and package migrate. Package postgres must not
// import it. Start reading at New and Engine.Examine.
package diagnose

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres"
)

// Engine is an open database with its diagnostics. It is a backends.Examiner, a
// backends.Advisor and a backends.Replicator, and implements everything that the Store does.
type Engine struct {
	*postgres.Store
	Thresholds Thresholds // tests change them

	database string // Info.Database as Examine has read it
}

var _ interface {
	backends.Adopter
	backends.Examiner
	backends.Advisor
	backends.Replicator
} = (*Engine)(nil)

// New returns an Engine that adds the diagnostics to a Store.
func New(s *postgres.Store) *Engine { return &Engine{Store: s, Thresholds: DefaultThresholds()} }

// Info implements backends.Backend. A Store that was opened with Options.Look has not
// read the id of the database, but Examine has.
func (x *Engine) Info() backends.Info {
	i := x.Store.Info()
	if i.Database == "" {
		i.Database = x.database
	}
	return i
}
