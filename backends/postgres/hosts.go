package postgres

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/cluster"
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

	refusing atomic.Bool // an old primary was refused since the last call of returned
	next     int         // the host that probeNext asks

	mu     sync.Mutex
	newest map[string]string // the highest timeline of a cluster, 8 hexadecimal digits, by its system identifier
}

const (
	// These run before the session has its settings, so they don't depend on the search path.
	isStandbySQL = "SELECT pg_catalog.pg_is_in_recovery()"
	// whichPrimarySQL also reads the timeline of a primary, and the cluster.
	whichPrimarySQL = `SELECT r, CASE WHEN NOT r THEN pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END, system_identifier
		FROM pg_catalog.pg_is_in_recovery() AS r, pg_catalog.pg_control_system()`
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
		timeline, cluster := "", ""
		switch {
		case fromServer(r.Err): // PostgreSQL has the function
			return errors.Join(checkProduct(ctx, c), r.Err)
		case r.Err != nil:
			return r.Err
		case string(r.Rows[0][0]) == "t":
			return errStandby
		case len(r.Rows[0]) == 3:
			timeline, cluster = string(r.Rows[0][1]), string(r.Rows[0][2])
		}
		return p.accept(c, timeline, cluster)
	}
}

// accept records a primary and its timeline, if it is known, or refuses the primary.
func (p *primaries) accept(c *pgconn.PgConn, timeline, cluster string) error {
	p.mu.Lock()
	newest, from, to, is := p.newest[cluster], "", "", ""
	if timeline >= newest {
		if timeline != "" {
			p.newest = map[string]string{cluster: timeline} // an address that moved to another cluster stays there
			is = cluster + "/" + timeline
		}
		from, to = p.hosts.Accept(c.Conn(), is)
	}
	p.mu.Unlock()
	switch {
	case timeline < newest:
		p.refusing.Store(true)
		p.refused(c, timeline, newest)
		return errOld
	case from != "" && p.changed != nil:
		p.changed(from, to)
	}
	return nil
}

// newestSQL reads the newest timeline that a server has seen. A standby can have seen one whose primary is not
// reachable. Its control file has the timeline only after a checkpoint.
const newestSQL = `SELECT pg_catalog.upper(pg_catalog.lpad(pg_catalog.to_hex(greatest(c.timeline_id, w.received_tli)), 8, '0'))
	FROM pg_catalog.pg_control_checkpoint() c, (SELECT) AS one LEFT JOIN pg_catalog.pg_stat_wal_receiver w ON true`

// survey asks all hosts of an address for their timelines. Without it a Store that starts after a failover would use an old
// primary that its address names before the new one.
//
// The timelines are not kept in the database. The old primary's tables don't have the new one, and a sidecar that has seen both
// must not write to the old primary.
func (p *primaries) survey(ctx context.Context, config *pgx.ConnConfig) {
	answers := askEach(ctx, config)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest = map[string]string{}
	for _, a := range answers { // a host that gave none will be refused when it is used
		p.newest[a.cluster] = max(p.newest[a.cluster], a.timeline)
	}
}

// returned reports whether the cluster itself returned to the old primary, and accepts its timeline then. All hosts of the address
// answer, one of them accepts writes, and no host has a newer timeline. So nothing can reach what was written in the newer one.
// Patroni does this if a primary hangs, is replaced, and takes its role back: it rewinds the other members.
func (p *primaries) returned(ctx context.Context, config *pgx.ConnConfig) (to, from string) {
	if !p.refusing.Swap(false) {
		return "", ""
	}
	writers, answers := 0, askEach(ctx, config)
	for _, a := range answers {
		if a.err != nil || a.cluster != answers[0].cluster {
			return "", ""
		}
		if to = max(to, a.timeline); !a.standby {
			writers++
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if from = p.newest[answers[0].cluster]; writers != 1 || to >= from {
		return "", ""
	}
	p.newest[answers[0].cluster] = to
	return to, from
}

// replaced records the answer of a host. It returns the address of the present primary if the answer has a newer timeline.
func (p *primaries) replaced(a answer) (old string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.timeline <= p.newest[a.cluster] || p.newest[a.cluster] == "" {
		return ""
	}
	p.newest[a.cluster] = a.timeline
	return p.hosts.Present()
}

// answer is what a host returned about itself.
type answer struct {
	err      error
	standby  bool
	timeline string // the newest that it has seen
	cluster  string
}

// askEach asks all hosts of an address at the same time.
func askEach(ctx context.Context, config *pgx.ConnConfig) []answer {
	each := hosts.Each(config)
	answers := make([]answer, len(each))
	var all sync.WaitGroup
	for i, one := range each {
		all.Go(func() { answers[i] = ask(ctx, one) })
	}
	all.Wait()
	return answers
}

func ask(ctx context.Context, one *pgx.ConnConfig) (a answer) {
	c, err := pgconn.ConnectConfig(ctx, &one.Config)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = c.Close(ctx) }()
	r := c.ExecParams(ctx, whichPrimarySQL, nil, nil, nil, nil).Read()
	if r.Err != nil {
		return answer{err: r.Err}
	}
	a.standby, a.timeline, a.cluster = string(r.Rows[0][0]) == "t", string(r.Rows[0][1]), string(r.Rows[0][2])
	r = c.ExecParams(ctx, newestSQL, nil, nil, nil, nil).Read()
	if a.err = r.Err; a.err == nil {
		a.timeline = max(a.timeline, string(r.Rows[0][0]))
	}
	return a
}

// system returns the system identifier of the latest primary, or "" if it is unknown.
func (p *primaries) system() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.newest) != 1 { // the hosts of the address are of several clusters, and none was used yet
		return ""
	}
	return slices.Collect(maps.Keys(p.newest))[0]
}

// oldPrimary reports that an old primary was refused.
func (s *Store) oldPrimary(c *pgconn.PgConn, timeline, newest string) {
	s.cluster.OldPrimary(&s.Meter, s.log, "address", s.place, "host", c.Conn().RemoteAddr().String(), "timeline", timeline, "newest_timeline", newest)
}

// describe reads the server's role in its cluster.
func (s *Store) describe(ctx context.Context) (string, error) {
	if !s.pooled {
		f, err := cluster.Read(ctx, s.pool)
		return f.Role(), err
	}
	var f cluster.Facts
	err := settled{s, nil}.do(ctx, func(c *pgx.Conn) (err error) {
		f, err = cluster.Read(ctx, c)
		return err
	})
	return f.Role(), err
}

// primaryChanged logs that connections lead to another host.
func (s *Store) primaryChanged(from, to string) {
	s.cluster.Expire()
	s.log.Warn("database host changed", "event", "database_host_changed", "address", s.place, "from", from, "to", to)
}

// probeEvery is the pause between two probes of the primary. An address with one host has no probes: there is no other
// host to use.
const probeEvery = time.Second

// startProbes makes the Store leave a primary that stopped answering, or that another host has replaced.
func (s *Store) startProbes() {
	if !hosts.Several(s.heartbeat.config) {
		return
	}
	for _, probe := range []func(){s.probePrimary, s.probeNext} {
		s.probes.Go(func() {
			for core.Pause(s.Life(), probeEvery) {
				probe()
			}
		})
	}
}

// probePrimary leaves a host that stopped answering. The kernel of such a host can still acknowledge what arrives, so the
// connections don't break by themselves.
func (s *Store) probePrimary() {
	before := s.Meter.Usage().RoundTrips.Count
	silent := s.primaries.hosts.Probe(s.Life(), s.heartbeat.config)
	if silent == "" || s.Meter.Usage().RoundTrips.Count != before { // an answer arrived in between
		return
	}
	s.log.Warn("database host silent", "event", "database_host_silent", "address", s.place, "host", silent)
	s.primaries.hosts.Cut(silent)
	s.pool.Reset()
}

// probeNext asks the next host of the address for its timeline. A primary that hung and continues can answer, while its commits wait for
// standbys that follow another primary by now.
func (s *Store) probeNext() {
	if to, from := s.primaries.returned(s.Life(), s.heartbeat.config); to != "" {
		s.log.Error("older timeline accepted", "event", "older_timeline_accepted", "address", s.place, "timeline", to, "newest_timeline", from)
	}
	each := hosts.Each(s.heartbeat.config)
	s.primaries.next++
	if old := s.primaries.replaced(ask(s.Life(), each[s.primaries.next%len(each)])); old != "" {
		s.log.Warn("database host replaced", "event", "database_host_replaced", "address", s.place, "host", old)
		s.primaries.hosts.Cut(old)
		s.pool.Reset()
	}
}
