package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/postgres/internal/queueset"
)

// heartbeatConn owns the connection for heartbeats. The channel with the connection is also its lock:
// a caller can wait for it until a deadline.
type heartbeatConn struct {
	config *pgx.ConnConfig
	free   chan *pgx.Conn // capacity 1; contains nil if the connection must be opened
}

// Heartbeat implements backends.Backend. It has its own connection, so no commit of this process
// can delay it.
func (s *Store) Heartbeat(ctx context.Context, b backends.Heartbeat) (_ backends.HeartbeatResult, err error) {
	defer func() { err = s.HeartbeatFailed(err) }()
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.heartbeat.get(ctx)
	if err != nil {
		return backends.HeartbeatResult{}, s.Outcome(ctx, err)
	}
	for try := 1; ; try++ {
		if c == nil {
			if c, err = s.heartbeat.open(ctx, s); err != nil {
				s.heartbeat.put(nil)
				return backends.HeartbeatResult{}, s.Outcome(ctx, err)
			}
		}
		var p backends.HeartbeatResult
		if p, err = s.sendHeartbeat(ctx, c, b); err == nil {
			s.heartbeat.put(c)
			s.HeartbeatAnswered(b, p)
			s.notifier.budget.SetSidecars(sidecarsOf(b, p))
			s.cluster.Refresh(s.Life(), s.describe)
			return p, nil
		}
		discard(ctx, c)
		c = nil
		// A repeated heartbeat does no harm: only its counter advances twice.
		if try == core.MaxTries || ctx.Err() != nil || !transient(err) || !core.Pause(ctx, core.RetryPause<<try) {
			break
		}
	}
	s.heartbeat.put(nil)
	lost := ctx.Err() != nil || broken(err) || sessionEnded(err)
	if lost || !fromServer(err) { // the connections of the pool can lead to the same dead host
		s.pool.Reset()
	}
	if lost && !pgconn.SafeToRetry(err) { // the server may have recorded it
		return backends.HeartbeatResult{}, fmt.Errorf("%w: a heartbeat: %w", backends.ErrUnknownOutcome, err)
	}
	return backends.HeartbeatResult{}, s.Outcome(ctx, err)
}

// sidecarsOf returns the number of sidecars. If the heartbeat didn't return all peers, it is an estimate, because
// identities are random.
func sidecarsOf(b backends.Heartbeat, r backends.HeartbeatResult) int {
	if n := len(r.Peers); r.Watched && !b.AllPeers && n > 0 {
		return queueset.Estimate(n, int64(r.Peers[n-1].Sidecar))
	}
	return len(r.Peers) + 1
}

// Each heartbeat is one round trip. If the Store owns its sessions, it is also one statement.
// Its commit doesn't wait for the disk, except for the first and the last heartbeat. If a crash of
// the server loses a heartbeat, the next one follows soon.
func (s *Store) sendHeartbeat(ctx context.Context, c *pgx.Conn, b backends.Heartbeat) (p backends.HeartbeatResult, err error) {
	t := &tx{s: s, c: c, batch: &pgx.Batch{}}
	if s.pooled {
		t.start(s.sql.begin)
	}
	sql := map[backends.HeartbeatKind]string{backends.HeartbeatJoin: s.sql.join, backends.HeartbeatRenew: s.sql.renew, backends.HeartbeatLeave: s.sql.leave}[b.Kind]
	t.each(sql, func(rows pgx.Rows) error {
		var n, host, beats, left, timeout int64
		var peer backends.Peer
		if err := rows.Scan(&n, &p.Watched, &host, &beats, &peer.Expired, &peer.Dead, &left, &peer.HasLeft, &timeout, &peer.DepthLeader, &peer.Name, &peer.Version, &peer.Leases); err != nil {
			return err
		}
		p.Alive = n == 1
		if peer.Sidecar, peer.Heartbeats = backends.Identity(host), uint64(beats); host != 0 {
			peer.Left, peer.Timeout = core.FromMS(left), backends.PeerTimeout(timeout)
			p.Peers = append(p.Peers, peer)
		}
		return nil
	}, int64(b.Sidecar), b.Name, core.MS(b.Timeout), b.AllPeers, b.DepthLeader, b.Version, b.Leases)
	if s.pooled {
		t.add("COMMIT", nil)
	}
	return p, t.send(ctx)
}

func (h *heartbeatConn) get(ctx context.Context) (*pgx.Conn, error) {
	if ctx.Err() != nil {
		return nil, core.Interrupted(ctx, "before the heartbeat")
	}
	select {
	case c := <-h.free:
		return c, nil
	case <-ctx.Done():
		return nil, core.Interrupted(ctx, "waiting for the previous heartbeat")
	}
}

func (h *heartbeatConn) put(c *pgx.Conn) { h.free <- c }

func (h *heartbeatConn) open(ctx context.Context, s *Store) (*pgx.Conn, error) {
	config := h.config.Copy()
	s.primaries.hosts.Order(config)
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := s.prepareSession(ctx, c); err != nil {
		discard(ctx, c)
		return nil, err
	}
	return c, nil
}

// close waits for a heartbeat in progress, which ends at once because the Store's context ended.
func (h *heartbeatConn) close() error {
	if c := <-h.free; c != nil {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackFor)
		defer cancel()
		return c.Close(ctx)
	}
	return nil
}

// discard closes a connection that is no longer useful. It ignores errors.
func discard(ctx context.Context, c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackFor)
	defer cancel()
	if err := c.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return
	}
}
