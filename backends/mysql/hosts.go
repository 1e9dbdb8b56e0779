package mysql

import (
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/core"
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

// moved stops the use of connections to another host than that of a new connection.
func (s *Store) moved(from, to string) {
	s.log.Warn("database host changed", "event", "database_host_changed", "address", s.place, "from", from, "to", to)
	s.pool.Retire()
	s.heartbeats.Retire()
}
