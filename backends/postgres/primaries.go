package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/hosts"
)

var (
	errStandby = errors.New("it is a standby, which can't be written to")
	errOld     = errors.New("it was the primary before another server took over, and must be stopped: it lacks what was written since")
)

// primaries holds what a Store has read from the servers that its address leads to. A promotion begins a timeline with a higher
// number. So a primary with a lower one than another server of the same cluster had is an old primary that was not stopped.
type primaries struct {
	hosts   hosts.Hosts
	refused func(c *pgconn.PgConn, timeline, newest string) // is called when an old primary is refused
	changed func(from, to string)                           // is called when another host is the primary

	mu     sync.Mutex
	newest map[string]string // the highest timeline of a cluster, 8 hexadecimal digits, by its system identifier
}

const (
	isStandbySQL = "SELECT pg_is_in_recovery()"
	// whichPrimarySQL also reads the timeline of a primary, and the cluster.
	whichPrimarySQL = `SELECT r, CASE WHEN NOT r THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END, system_identifier
		FROM pg_is_in_recovery() AS r, pg_control_system()`
)

// only returns a check of new connections that runs after also, the check of target_session_attrs. It rejects
// standbys and old primaries, so pgx uses the present primary of several hosts. If an address moves, connections
// fail until it leads to the primary.
func (p *primaries) only(also pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, c *pgconn.PgConn) error {
		if also != nil {
			if err := also(ctx, c); err != nil {
				return err
			}
		}
		r := c.ExecParams(ctx, whichPrimarySQL, nil, nil, nil, nil).Read()
		if fromServer(r.Err) { // the server doesn't reveal its identity
			r = c.ExecParams(ctx, isStandbySQL, nil, nil, nil, nil).Read()
		}
		switch {
		case r.Err != nil:
			return r.Err
		case string(r.Rows[0][0]) == "t":
			return errStandby
		case len(r.Rows[0]) == 3:
			if err := p.check(c, string(r.Rows[0][1]), string(r.Rows[0][2])); err != nil {
				return err
			}
		}
		if from, to := p.hosts.Accept(c.Conn()); from != "" && p.changed != nil {
			p.changed(from, to)
		}
		return nil
	}
}

// check records the timeline of a primary, or refuses the primary.
func (p *primaries) check(c *pgconn.PgConn, timeline, cluster string) error {
	p.mu.Lock()
	newest := p.newest[cluster]
	if timeline >= newest {
		p.newest = map[string]string{cluster: timeline} // an address that moved to another cluster stays there
	}
	p.mu.Unlock()
	if timeline >= newest {
		return nil
	}
	p.refused(c, timeline, newest)
	return errOld
}

// oldPrimary logs that an old primary was refused.
func (s *Store) oldPrimary(c *pgconn.PgConn, timeline, newest string) {
	s.log.Error("old primary refused", "event", "old_primary_refused", "address", s.place, "host", c.Conn().RemoteAddr().String(),
		"timeline", timeline, "newest_timeline", newest)
}

// primaryChanged logs that connections lead to another host.
func (s *Store) primaryChanged(from, to string) {
	s.log.Warn("database host changed", "event", "database_host_changed", "address", s.place, "from", from, "to", to)
}

// probeEvery is the pause between two probes of the primary. An address with one host has no probes: there is no other
// host to use.
const probeEvery = time.Second

// startProbes makes the Store leave a host that stopped answering. The kernel of such a host can still acknowledge what
// arrives, so the connections don't break by themselves.
func (s *Store) startProbes() {
	if !hosts.Several(s.heartbeat.config) {
		return
	}
	s.probes.Go(func() {
		for core.Pause(s.Life(), probeEvery) {
			before := s.Meter.Usage().RoundTrips.Count
			silent := s.primaries.hosts.Probe(s.Life(), s.heartbeat.config)
			if silent == "" || s.Meter.Usage().RoundTrips.Count != before { // an answer arrived in between
				continue
			}
			s.log.Warn("database host silent", "event", "database_host_silent", "address", s.place, "host", silent)
			s.primaries.hosts.Cut(silent)
			s.pool.Reset()
		}
	})
}
