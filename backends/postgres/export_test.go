package postgres

// The tests of package diagnose (package postgres_test) run on the servers of this
// package's tests.
var (
	Everywhere = everywhere
	OpenStore  = open
	Filled     = filled
	Exec       = exec
	Must       = must
	As         = as
	Poolers    = poolers
)
