package measure

import (
	"context"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/proc"
)

// Options are the sizes of all measurements.
type Options struct {
	Engines string
	Parts   string // of all parts
	Bin     string
	Workers int
	Jobs    int // of each measurement
	Batch   int
	Rounds  int
	Rows    int // of each state in a large table
	Held    int // jobs processed while a snapshot is held
	Finish  int // done rows to prune, and as many dead ones
	Wakes   int // enqueues to a waiting worker
	Blocked int // jobs of one group
	Span    time.Duration
	Fast    bool

	Cell time.Duration // of one measurement of the parts rivals and workers

	// of the part rivals
	Only string        // patterns of peer/workload
	Time time.Duration // of the part
	File string        // the results, of all parts
}

// Setup is what all measurements of an engine share.
type Setup struct {
	Options
	Engine Engine
	Server Server
	Out    *Report
}

// Watch returns a function that reads what the sidecar and the database have used.
func (s *Setup) Watch(ctx context.Context, x *Sidecar, d Database) func() (Usage, error) {
	return func() (Usage, error) {
		u := Usage{At: time.Now()}
		var errs [4]error
		if d != nil {
			u.Counts, errs[0] = d.Count(ctx)
		}
		u.Database, errs[1] = s.Server.CPU()
		u.Self, errs[2] = proc.CPUOfSelf()
		u.Sidecar, errs[3] = proc.CPU(x.PID)
		return u, errors.Join(errs[:]...)
	}
}

// Site is a database with its sidecar.
type Site struct {
	Database Database
	Sidecar  *Sidecar
}

// Site creates a database on a server, and starts its sidecar.
func (s *Setup) Site(ctx context.Context, v Server, name string) (_ *Site, err error) {
	d, err := v.Database(ctx, name)
	if err != nil {
		return nil, err
	}
	sidecar, err := StartSidecar(ctx, s.Bin, d.URL(), false)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &Site{d, sidecar}, nil
}

// Close stops the sidecar and closes the database.
func (s *Site) Close() error { return errors.Join(s.Sidecar.Stop(), s.Database.Close()) }
