package databases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/engines"
)

const (
	// replicaTimeout is how long a query waits for the replica before the primary answers it.
	replicaTimeout = 3 * time.Second
	// replicaPause is how long the primary answers after the replica failed.
	replicaPause = 10 * time.Second
	// replicaConnections is the size of the pool. PostgreSQL needs this many.
	replicaConnections = 4
)

var (
	errLate         = errors.New("the replica is too far behind: in its rows the heartbeats of all sidecars have expired. See whether it still receives and applies changes")
	errOther        = errors.New("replica_url leads to another database, not to a replica of this one: correct it")
	errOpening      = errors.New("the replica is not connected yet")
	errReplicaEnded = errors.New("the replica is closed")
)

// replica opens the replica when it is first used, and again after each failure.
type replica struct {
	open  func(ctx context.Context) (backends.Engine, error)
	log   *slog.Logger
	pause time.Duration // see replicaPause

	closing sync.WaitGroup // engines that failed

	mu      sync.Mutex
	engine  backends.Engine // nil: not open
	opening bool
	closed  bool
	err     error     // why the last Stats failed
	failed  time.Time // when it failed
}

// NewReplica returns the replica of a database of the config, or nil if it has none. It doesn't connect.
func NewReplica(c *config.Config, name string, log *slog.Logger) backends.Replica {
	d := c.Databases[name]
	if d.ReplicaURL == "" {
		return nil
	}
	return &replica{log: log.With("database", name), pause: replicaPause, open: func(ctx context.Context) (backends.Engine, error) {
		return openReplica(ctx, d, log)
	}}
}

func openReplica(ctx context.Context, d config.Database, log *slog.Logger) (backends.Engine, error) {
	u, err := engines.ParseURL(d.ReplicaURL)
	if err != nil {
		return nil, err
	}
	password, err := d.ReadPassword()
	if err != nil {
		return nil, err
	}
	return u.Open(ctx, engines.Options{Password: password, Schema: d.Schema, MaxConnections: replicaConnections, ReadOnly: true, Log: log})
}

// Stats implements backends.Replica.
func (r *replica) Stats(ctx context.Context, database, queue string) (stats []backends.QueueStats, err error) {
	// The timeout is independent of the caller's. If a caller gives up, the replica has not failed.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), replicaTimeout, fmt.Errorf("the replica gave no answer within %v", replicaTimeout))
	defer cancel()
	e, err := r.opened(ctx)
	if e == nil {
		return nil, err
	}
	if err = follows(ctx, e, database); err == nil {
		stats, err = e.Stats(ctx, queue)
	}
	r.record(e, err)
	return stats, err
}

// opened returns the open engine. If it is nil, the error is why.
func (r *replica) opened(ctx context.Context) (backends.Engine, error) {
	r.mu.Lock()
	switch {
	case r.closed:
		r.mu.Unlock()
		return nil, errReplicaEnded
	case r.engine != nil:
		defer r.mu.Unlock()
		return r.engine, nil
	case r.err != nil && time.Since(r.failed) < r.pause:
		defer r.mu.Unlock()
		return nil, r.err
	case r.opening:
		r.mu.Unlock()
		return nil, errOpening
	}
	r.opening = true
	r.closing.Add(1)
	defer r.closing.Done()
	r.mu.Unlock()
	e, err := r.open(ctx)
	r.mu.Lock()
	r.opening = false
	if err == nil && r.closed {
		r.mu.Unlock()
		return nil, errors.Join(errReplicaEnded, e.Close())
	}
	r.engine = e
	r.mu.Unlock()
	if err != nil {
		r.record(nil, err)
		return nil, err
	}
	return e, nil
}

// record records the result of a use of e, or of an attempt to open it. After an error e is closed.
func (r *replica) record(e backends.Engine, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.engine != e {
		return
	}
	switch {
	case err == nil && r.err != nil:
		r.log.Info("replica in use again", "event", "replica_used")
	case err != nil && r.err == nil:
		r.log.Warn("can't read the replica", "event", "replica_failed", "error", err)
	}
	r.err = err
	if err == nil {
		return
	}
	r.failed, r.engine = time.Now(), nil
	if e != nil {
		r.closing.Go(func() { _ = e.Close() }) // the first error is the one to report
	}
}

// Err implements backends.Replica.
func (r *replica) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Close implements backends.Replica.
func (r *replica) Close() error {
	r.mu.Lock()
	e := r.engine
	r.engine, r.closed = nil, true
	r.mu.Unlock()
	var err error
	if e != nil {
		err = e.Close()
	}
	r.closing.Wait()
	return err
}

// follows returns an error if e is not a replica of the database, or if it is too far behind. A sidecar that runs has a row
// that has not expired at the primary. If all rows have expired at the replica, it lacks at least the last heartbeats.
func follows(ctx context.Context, e backends.Engine, database string) error {
	d := e.Dialect()
	expires := backends.Column{Name: "expires_at", Type: "timestamp with time zone"}
	if e.Info().Engine == "mysql" {
		expires.Type = "datetime(6)"
	}
	found, alive := "", false
	err := e.Query(ctx, &backends.Statement{
		Text: "SELECT " + d.Name("database") + ", CASE WHEN EXISTS (SELECT 1 FROM " + d.SidecarTable("qsidecar_sidecars") + " WHERE NOT dead AND NOT has_left AND expires_at > " +
			d.Now(expires, true) + ") THEN 'yes' ELSE 'no' END FROM " + d.SidecarTable("qsidecar_meta"),
		Row: func(cells [][]byte) error {
			found, alive = string(cells[0]), string(cells[1]) == "yes"
			return nil
		},
	})
	switch {
	case err != nil:
		return err
	case found != database:
		return errOther
	case !alive:
		return errLate
	}
	return nil
}
