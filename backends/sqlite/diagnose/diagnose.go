// Package diagnose is the operator tooling of the SQLite engine, apart from the hot
// path: the checks of `qsidecar check`, and the description of tables that another
// application owns. It uses a sqlite.Store through the methods in
// backends/sqlite/diagnostics.go, and package migrate. Package sqlite must not
// import it. Start reading at New and Engine.Examine.
package diagnose

import (
	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlite"
)

// Engine is an open database with its diagnostics. It is a backends.Examiner and a
// backends.Advisor, and implements everything that the Store does.
type Engine struct {
	*sqlite.Store
	Thresholds Thresholds // tests change them

	database string // Info.Database as Examine has read it
}

var _ interface {
	backends.Adopter
	backends.Examiner
	backends.Advisor
} = (*Engine)(nil)

// New returns an Engine that adds the diagnostics to a Store.
func New(s *sqlite.Store) *Engine { return &Engine{Store: s, Thresholds: DefaultThresholds()} }

// Info implements backends.Backend. A Store that was opened with Options.Look has not
// read the id of the database, but Examine has.
func (x *Engine) Info() backends.Info {
	i := x.Store.Info()
	if i.Database == "" {
		i.Database = x.database
	}
	return i
}
