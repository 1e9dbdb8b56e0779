package mysql

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// Beat implements backends.Backend. No commit of this process can hold it up:
// it has a connection of its own.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (backends.HeartbeatResult, error) {
	ctx, done := s.bound(ctx)
	defer done()
	sent := false // and its answer got lost
	for try := 1; ; try++ {
		p, began, err := s.beat(ctx, b)
		if err == nil {
			return p, nil
		}
		sent = sent || began && !fromServer(err)
		// A beat made twice is a beat: only its counter moves twice.
		if try == maxTries || ctx.Err() != nil || !s.transient(err) || !batch.Pause(ctx, retryPause<<try) {
			if sent {
				return backends.HeartbeatResult{}, fmt.Errorf("%w: a beat: %w", backends.ErrUnknownOutcome, err)
			}
			return backends.HeartbeatResult{}, s.outcome(ctx, err)
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
	// A session from before stays good if its server becomes read-only, and an account that is
	// exempt goes on writing by it.
	if err := s.writable(ctx, c); err != nil {
		if batch.Known(err) {
			c.bad = true
			s.pool.leave()
		}
		return p, false, err
	}
	var t script
	lease := batch.MS(b.Timeout) * 1000
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
		peer.Expired = backends.Ended(time.Duration(r.int(2))*time.Microsecond, peer.Timeout, r.int(4) != 0)
		if peer.Host != b.Host {
			p.Peers = append(p.Peers, peer)
			return nil
		}
		p.Alive = !peer.Dead && (r.int(4) == 0 || b.Kind == backends.HeartbeatLeave)
		return nil
	}, s.sql.peers)
	return p, true, c.query(ctx, t.sql.String(), t.args, t.reads)
}

// ownerLane is the lane of what a host has claimed.
func ownerLane(host int64) string { return fmt.Sprintf("c%016X", uint64(host)) }

// Held implements backends.Backend.
func (s *Store) ClaimedBy(ctx context.Context, host backends.Identity, after string, limit int) ([]backends.ClaimedJob, error) {
	var held []backends.ClaimedJob
	from, _ := batch.Number(after) // what is no id has everything after it
	err := s.read(ctx, func(_ context.Context, t *tx) error {
		held = nil
		t.each(func(r *result) error {
			held = append(held, backends.ClaimedJob{
				Lease: backends.Lease{
					Job:   batch.ID(r.int(0)),
					Token: backends.Token{Host: backends.Identity(r.int(1)), Number: uint64(r.int(2))},
				},
				Queue: r.text(3),
				Timed: r.int(4) != 0,
			})
			return nil
		}, s.sql.held, ownerLane(int64(host)), from, limit)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}
