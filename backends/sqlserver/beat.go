package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Beat implements backends.Backend. No commit of this process can hold it up: it has
// a connection of its own. A beat made twice is a beat: only its counter moves twice.
func (s *Store) Beat(ctx context.Context, b backends.Beat) (backends.Pulse, error) {
	ctx, done := s.bound(ctx)
	defer done()
	if ctx.Err() != nil {
		return backends.Pulse{}, batch.Ended(ctx, "before the beat")
	}
	var p backends.Pulse
	maybe := false // it may have been made
	err := s.again(ctx, func() error {
		c, err := s.beats.Conn(ctx)
		if err != nil {
			return err
		}
		p = backends.Pulse{}
		if err = s.sql.carryOut(ctx, c, []call{s.beat(b, &p)}); err != nil && (broken(err) || ctx.Err() != nil) {
			maybe = true
			discard(c)
		}
		if e := c.Close(); e != nil && err == nil {
			s.log.Debug("giving the beats' connection back", "place", s.place, "error", e)
		}
		return err
	})
	switch {
	case err == nil:
		return p, nil
	case maybe:
		return backends.Pulse{}, fmt.Errorf("%w: a beat: %w", backends.ErrUnknownOutcome, err)
	}
	return backends.Pulse{}, err
}

// beat is the call for a beat.
func (s *Store) beat(b backends.Beat, p *backends.Pulse) call {
	piece := map[backends.BeatKind]*piece{backends.BeatJoin: s.sql.join, backends.BeatRenew: s.sql.renew, backends.BeatLeave: s.sql.leave}[b.Kind]
	return call{piece, []any{int64(b.Host), b.Row(), ms(b.Lease)}, []reader{
		func(rows *sql.Rows) error {
			var made int
			err := one(&made)(rows)
			p.Alive = made == 1
			return err
		},
		each(func(rows *sql.Rows) error {
			var host, beats, left int64
			var peer backends.Peer
			var name string
			var hasLeft bool
			if err := rows.Scan(&host, &beats, &left, &peer.Dead, &name, &hasLeft); err != nil {
				return err
			}
			peer.Host, peer.Beats, peer.Reads, peer.Lease = backends.Identity(host), uint64(beats), backends.Reads(name), backends.LeaseOf(name)
			peer.Expired = backends.Ended(batch.FromMS(left), peer.Lease, hasLeft)
			p.Peers = append(p.Peers, peer)
			return nil
		}),
	}}
}
