package sqlserver

import "github.com/qsidecar/qsidecar/backends"

// The tests of package diagnose (package sqlserver_test) run on the scripted server of this
// package's tests.
type Answer = answer

var (
	RowOf         = rowOf
	ServerError   = serverError
	Flag          = flag01
	ScriptedStore = scriptedStore
)

// SetBabelfish has the Store take its server for Babelfish.
func SetBabelfish(s *Store) { s.server.babelfish = true }

// NewEngine is diagnose.New, which this package can't import. Package sqlserver_test sets it.
var NewEngine func(s *Store) backends.Engine
