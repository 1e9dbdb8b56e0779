package postgres

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	errStandby = errors.New("it is a standby, which can't be written to")
	errOld     = errors.New("it was the primary before another server took over, and must be stopped: it lacks what was written since")
)

// primaries holds what a Store has read from the servers that its address leads to. A promotion begins a timeline with a higher
// number. So a primary with a lower one than another server of the same cluster had is an old primary that was not stopped.
type primaries struct {
	refused func(c *pgconn.PgConn, timeline, newest string) // is called when an old primary is refused

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
			return p.check(c, string(r.Rows[0][1]), string(r.Rows[0][2]))
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
