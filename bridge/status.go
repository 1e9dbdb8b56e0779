package bridge

import (
	"cmp"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/session"
	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// status returns the current state of the sidecar.
func (b *Bridge) status() *protocol.Status {
	c := b.config.Load()
	st := &protocol.Status{UptimeMS: time.Since(b.began).Milliseconds(), Generation: 1,
		Sockets: []protocol.SocketStatus{}, Databases: []protocol.DatabaseStatus{}, Sessions: []protocol.SessionStatus{}}
	if b.control != nil {
		generation, failed, since := b.control.Config()
		st.Generation, st.Admin, st.Page = generation, b.control.Admin(), b.control.Page()
		if failed != nil {
			st.ConfigError, st.FailedAt = failed.Error(), protocol.Some(since.UnixMilli())
		}
	}
	b.mu.Lock()
	sessions := make([]*session.Session, 0, len(b.sessions))
	for s := range b.sessions {
		sessions = append(sessions, s)
	}
	b.mu.Unlock()
	for _, s := range sessions {
		st.Sessions = append(st.Sessions, s.Describe(c.Plan))
	}
	slices.SortFunc(st.Sessions, func(a, b protocol.SessionStatus) int {
		return cmp.Or(-cmp.Compare(a.AgeMS, b.AgeMS), cmp.Compare(a.Session, b.Session))
	})
	on := make(map[string]int64)
	for _, s := range sessions {
		on[s.Socket]++
	}
	for _, socket := range c.opts.Sockets {
		s := protocol.SocketStatus{Path: socket.Path, Sessions: on[socket.Path]}
		if err := b.socketError(socket.Path); err != nil {
			s.Error = err.Error()
		}
		st.Sockets = append(st.Sockets, s)
	}
	for _, db := range c.Databases {
		st.Databases = append(st.Databases, describe(db))
	}
	slices.SortFunc(st.Databases, func(a, b protocol.DatabaseStatus) int { return cmp.Compare(a.Name, b.Name) })
	return st
}

// obstacleText is the longest error of an obstacle in a status, in bytes. The log has all of it.
const obstacleText = 500

// describe returns a database for the status of the sidecar.
func describe(db *plan.Database) protocol.DatabaseStatus {
	info := db.CurrentInfo()
	d := protocol.DatabaseStatus{Name: db.Name, Engine: info.Engine, Version: info.Version, Address: info.Address, Cluster: info.Cluster,
		HeartbeatAgeMS: -1, Draining: !db.Served, Leases: int64(db.HeldBySessions())}
	if age := db.HeartbeatAge(); age >= 0 {
		d.HeartbeatAgeMS = age.Milliseconds()
	}
	if err := db.LastErr(); err != nil {
		d.Error = err.Error()
	}
	if err := db.ReplicaErr(); err != nil {
		d.ReplicaError = err.Error()
	}
	obstacles := db.Obstacles()
	d.ObstacleCount = int64(len(obstacles))
	for _, o := range obstacles[:min(len(obstacles), protocol.MaxObstacles)] {
		d.Obstacles = append(d.Obstacles, protocol.Obstacle{
			Queue: o.Queue, Table: o.Table, Job: o.Job, Doing: o.Doing, Error: textfmt.OneLine(o.Err.Error(), obstacleText),
			AgeMS: max(time.Since(o.Since), 0).Milliseconds(), NextTryMS: max(time.Until(o.NextTry), 0).Milliseconds(),
		})
	}
	if u, ok := db.Usage(); ok {
		d.PoolMax, d.PoolInUse, d.PoolIdle = int64(u.Max), int64(u.InUse), int64(u.Idle)
	}
	return d
}
