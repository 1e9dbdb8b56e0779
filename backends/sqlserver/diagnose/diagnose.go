// Package diagnose is the operator tooling of the SQL Server engine, apart from the hot path: the checks of `qsidecar
// check`, and the description of tables that another application owns. It uses a sqlserver.Store through the methods
// in backends/sqlserver/diagnostics.go, and package migrate. Package sqlserver must not import it.
//
// Start reading at New and Engine.Examine.
package diagnose

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlserver"
)

// Engine is an open database with its diagnostics. It is a backends.Examiner and a backends.Advisor, and has all
// methods of the Store.
type Engine struct {
	*sqlserver.Store

	database string // Info.Database as Examine read it
}

var _ interface {
	backends.Adopter
	backends.Examiner
	backends.Advisor
} = (*Engine)(nil)

// New adds the diagnostics to a Store.
func New(s *sqlserver.Store) *Engine { return &Engine{Store: s} }

// Info implements backends.Backend. A Store that was opened with Options.Look has not read the id of the database,
// but Examine has.
func (x *Engine) Info() backends.Info {
	i := x.Store.Info()
	if i.Database == "" {
		i.Database = x.database
	}
	return i
}
