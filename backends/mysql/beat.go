package mysql

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Heartbeat implements backends.Backend. It has a connection of its own, so no commit of this process can
// delay it.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	ctx, done := s.Bound(ctx)
	defer done()
	sent := false // and its answer got lost
	for try := 1; ; try++ {
		p, began, err := s.beat(ctx, b)
		if err == nil {
			return p, nil
		}
		sent = sent || began && !fromServer(err)
		// A heartbeat can run twice: only its counter grows twice.
		if try == core.MaxTries || ctx.Err() != nil || !s.transient(err) || !core.Pause(ctx, core.RetryPause<<try) {
			if sent {
				return backends.HeartbeatResult{}, fmt.Errorf("%w: a beat: %w", backends.ErrUnknownOutcome, err)
			}
			return backends.HeartbeatResult{}, s.Outcome(ctx, err)
		}
	}
}

func (s *Store) beat(ctx context.Context, b backends.Heartbeat) (p backends.HeartbeatResult, began bool, err error) {
	c, l, err := s.take(ctx, &s.beats)
	if err != nil {
		return p, false, err
	}
	defer func() { s.beats.put(c, l) }()
	if ctx.Err() != nil {
		return p, false, context.Cause(ctx)
	}
	// A session from before stays usable if its server becomes read-only, and an account that is exempt
	// from read_only still writes through it.
	if err := s.writable(ctx, c); err != nil {
		if core.Known(err) {
			c.bad = true
			s.pool.leave()
		}
		return p, false, err
	}
	var t script
	lease := core.MS(b.Timeout) * 1000
	switch b.Kind {
	case backends.HeartbeatJoin:
		t.add(s.sql.join, int64(b.Host), b.RowName(), lease)
	case backends.HeartbeatRenew:
		t.add(s.sql.renew, b.RowName(), lease, int64(b.Host))
	case backends.HeartbeatLeave:
		t.add(s.sql.leave, b.RowName(), lease, int64(b.Host))
	default:
		return p, false, fmt.Errorf("%w: a beat of the unknown kind %d", errOwn, b.Kind)
	}
	t.each(func(r *result) error {
		row := r.text(5)
		peer := backends.Peer{Host: backends.Identity(r.int(0)), Heartbeats: uint64(r.int(1)), Dead: r.int(3) != 0, DepthLeader: backends.IsDepthLeader(row), Timeout: backends.TimeoutOf(row)}
		peer.Expired = backends.HeartbeatExpired(time.Duration(r.int(2))*time.Microsecond, peer.Timeout, r.int(4) != 0)
		if peer.Host != b.Host {
			p.Peers = append(p.Peers, peer)
			return nil
		}
		p.Alive = !peer.Dead && (r.int(4) == 0 || b.Kind == backends.HeartbeatLeave)
		return nil
	}, s.sql.peers)
	return p, true, c.query(ctx, t.sql.String(), t.args, t.reads)
}

// ownerLane returns the `lane` of the jobs that a sidecar has claimed.
func ownerLane(host int64) string { return fmt.Sprintf("c%016X", uint64(host)) }
