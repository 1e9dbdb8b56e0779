package mysql

// The test of package diagnose (package mysql_test) runs on the servers of this package's
// tests.
var (
	Everywhere = everywhere
	OwnServers = ownServers
	OpenStore  = open
	Crowded    = crowded
	Must       = must
	Login      = login
)

// WithClock returns the options with another SQL expression for the present time.
func WithClock(o Options, clock string) Options {
	o.clock = clock
	return o
}
