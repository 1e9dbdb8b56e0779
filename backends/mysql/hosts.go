package mysql

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/cluster"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// probeEvery is the pause between two probes of the host that the connections lead to. An address with one host has no
// probes: there is no other host to use.
const probeEvery = time.Second

// startProbes makes the Store leave a host that stopped answering. The kernel of such a host can still acknowledge what
// arrives, so the connections don't break by themselves.
func (s *Store) startProbes() {
	if !s.dialer.Several() {
		return
	}
	s.probes.Go(func() {
		for core.Pause(s.Life(), probeEvery) {
			before := s.Meter.Usage().RoundTrips.Count
			silent := s.dialer.Probe(s.Life())
			if silent == "" || s.Meter.Usage().RoundTrips.Count != before { // an answer arrived in between
				continue
			}
			s.log.Warn("database host silent", "event", "database_host_silent", "address", s.place, "host", silent)
			s.dialer.Suspect(silent)
			s.pool.Cut(silent)
			s.heartbeats.Cut(silent)
		}
	})
}

// refused reports that a source that was replaced accepts writes. Sidecars that start now would use it.
func (s *Store) refused(host string) {
	s.cluster.OldPrimary(&s.Meter, s.log, "address", s.place, "host", host)
}

// moved stops the use of connections to another host than that of a new connection, and ends what runs on them. A host that hung and
// continues would still answer there, after another one replaced it.
func (s *Store) moved(from, to string) {
	s.log.Warn("database host changed", "event", "database_host_changed", "address", s.place, "from", from, "to", to)
	s.pool.Cut(from)
	s.heartbeats.Cut(from)
	s.cluster.Expire()
}

// describe reads the server's role in its cluster.
func (s *Store) describe(ctx context.Context) (text string, err error) {
	err = s.readOnce(ctx, func(ctx context.Context, t *tx) error {
		f, err := cluster.Read(ctx, Session{s: s, c: t.c}.Rows, s.dialer.Server.Maria, s.dialer.Server.Version,
			func(err error) bool { return session.FromServer(err) && !session.EndsSession(err) })
		text = f.Role()
		return err
	})
	return text, err
}
