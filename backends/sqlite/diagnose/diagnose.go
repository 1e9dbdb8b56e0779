// Package diagnose is the operator tooling of the SQLite engine, apart from the hot
// path: what `qsidecar check` examines, and how tables that another application owns
// look and are read. It uses a sqlite.Store through the methods in
// backends/sqlite/diagnostics.go, and package migrate. Package sqlite must not
// import it. Start reading at New and Engine.Examine.
package diagnose

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlite"
)

// Engine is an open database with its diagnostics. It is a backends.Examiner, a
// backends.Advisor and all that the Store is.
type Engine struct {
	*sqlite.Store
	Thresholds Thresholds // tests change them

	database string // Info.Database as Examine read it
}

var _ interface {
	backends.Adopter
	backends.Examiner
	backends.Advisor
} = (*Engine)(nil)

// New adds the diagnostics to a Store.
func New(s *sqlite.Store) *Engine { return &Engine{Store: s, Thresholds: DefaultThresholds()} }

// Info implements backends.Backend. A Store that was opened with Options.Look has not
// read the id of the database, and Examine has.
func (x *Engine) Info() backends.Info {
	i := x.Store.Info()
	if i.Database == "" {
		i.Database = x.database
	}
	return i
}
