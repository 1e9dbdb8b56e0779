package sqlite

// The tests of package diagnose (package sqlite_test) use these.
var (
	Fresh  = fresh
	Shell  = shell
	OneJob = one
)
