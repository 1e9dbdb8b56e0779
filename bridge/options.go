package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/permission"
	"github.com/qsidecar/qsidecar/bridge/internal/plan"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// Defaults of Options.
const (
	DefaultSidecarTimeout = 30 * time.Second
	DefaultDrainTimeout   = 30 * time.Second
	DefaultMaxAttempts    = plan.DefaultMaxAttempts
	DefaultBackoff        = time.Second
	DefaultBackoffMax     = time.Hour
	DefaultJitter         = plan.DefaultJitter
	MaxJitter             = 0.5
	DefaultRetainDead     = 30 * 24 * time.Hour
	DefaultRetainBatch    = 30 * 24 * time.Hour
	DefaultKeyTTL         = 10 * time.Minute
	DefaultSocketMode     = fs.FileMode(0o660)
	DefaultQueueLabels    = 100

	// MinSidecarTimeout keeps the heartbeats, one every sixth of it, from becoming a load.
	MinSidecarTimeout = time.Second
	MaxSidecarTimeout = time.Hour
)

// Options configure a Bridge. Zero values stand for the defaults. New works on a copy.
type Options struct {
	// Server is the program's name and version, as the reply to hello reports it.
	Server string

	// Databases maps the names that queues use to databases. The Bridge does not close them.
	Databases map[string]Database

	// Queues are the queues by name. The entry "*" stands for every name without its own entry. Without "*" such a
	// name is unknown_queue.
	Queues map[string]Queue

	// Sockets are the sockets to listen on. They can be empty if only ServeStream is used.
	Sockets []Socket

	// Inherited are listeners at the path of one of Sockets that the service manager created (socket activation) and
	// also listens on. Every Options of a Bridge has the same ones. Run closes them, and nothing else must use them.
	Inherited []*net.UnixListener

	// Limits bound the resources that clients can use.
	Limits Limits

	// QueueLabels is how many auto-created queues have metrics of their own. Others share those of the queue
	// "_other". It defaults to 100. Negative: none.
	QueueLabels int

	// MaxFrame is the largest request in bytes. It defaults to 4 MiB, and is at most 64 MiB.
	MaxFrame int

	// DrainTimeout bounds how long an orderly exit waits for workers that hold jobs. It defaults to 30 s. Negative:
	// Run does not wait.
	DrainTimeout time.Duration
}

// Database is an open backend, with the timeouts of its sidecars.
type Database struct {
	Backend backends.Backend

	// Replica, if not nil, answers queries for statistics. The Backend answers those that limits depend on, and those that the
	// Replica can't answer.
	Replica backends.Replica

	// SidecarTimeout is how long this sidecar's session leases outlive its last heartbeat. The sidecar sends six
	// heartbeats in that time. It is 1 s to 1 h, and defaults to 30 s.
	SidecarTimeout time.Duration

	// RestartGrace is how long session leases outlive an orderly exit. It defaults to SidecarTimeout.
	RestartGrace time.Duration

	// Done, if not nil, is called once after a reload took the Backend out of use and the last call to it has ended.
	// It is not called for a Backend that is in use when Run ends.
	Done func()
}

// Queue is the configuration of a queue.
type Queue struct {
	Database      string        // a key of Options.Databases; can be empty if there is only one
	MaxAttempts   int           // defaults to 20
	Timeout       time.Duration // of one run; 0: no timeout
	Backoff       time.Duration // before the first retry, doubling. Defaults to 1 s
	BackoffMax    time.Duration // defaults to 1 h
	Jitter        float64       // by which part of itself a back-off can become longer or shorter. Defaults to 0.1; negative: none
	RetainDone    time.Duration // of done jobs; 0: deleted immediately
	RetainDead    time.Duration // of dead jobs. Defaults to 30 days; negative: indefinitely
	RetainBatch   time.Duration // of batches that don't end, with callbacks in the queue. Defaults to 30 days
	KeyTTL        time.Duration // minimum time that a key is remembered. Defaults to 10 min
	LIFO          bool          // newest first inside a priority
	StartWithin   time.Duration // in which a job has to start that names no other limit; 0: no limit
	RemoveExpired bool          // delete jobs that did not start in time, instead of making them dead
	MaxReady      int           // number of ready jobs from which an enqueue is refused as busy; 0: no limit. See depth.ReadyAge
}

// Rule allows some users of a socket some ops on some queues.
type Rule = permission.Rule

// Socket is a Unix socket to listen on.
type Socket struct {
	Path string
	Mode fs.FileMode // defaults to 0660
	// Group owns the socket: a name or a number. Empty: the process's own group.
	Group string
	// Allow lists the rights of users and groups. Nil: any client that can connect has all rights. Otherwise an op that no
	// rule allows is forbidden. Linux only.
	Allow []Rule
}

// file returns the part of the Socket that the file system holds.
func (s *Socket) file(log *slog.Logger) unixsocket.Config {
	return unixsocket.Config{Path: s.Path, Mode: s.Mode, Group: s.Group, Log: log}
}

func (o Options) withDefaults() Options {
	o.Server = cmp.Or(o.Server, "qsidecar")
	o.Limits = o.Limits.withDefaults()
	o.QueueLabels = cmp.Or(o.QueueLabels, DefaultQueueLabels)
	o.MaxFrame = cmp.Or(o.MaxFrame, protocol.DefaultMaxFrame)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, DefaultDrainTimeout)
	dbs := make(map[string]Database, len(o.Databases))
	for name, d := range o.Databases {
		d.SidecarTimeout = cmp.Or(d.SidecarTimeout, DefaultSidecarTimeout)
		d.RestartGrace = cmp.Or(d.RestartGrace, d.SidecarTimeout)
		dbs[name] = d
	}
	o.Databases = dbs
	queues := make(map[string]Queue, len(o.Queues))
	for name, q := range o.Queues {
		queues[name] = q.withDefaults(dbs)
	}
	o.Queues = queues
	sockets := make([]Socket, len(o.Sockets))
	for i, s := range o.Sockets {
		s.Mode = cmp.Or(s.Mode, DefaultSocketMode)
		sockets[i] = s
	}
	o.Sockets = sockets
	return o
}

func (q Queue) withDefaults(dbs map[string]Database) Queue {
	if q.Database == "" && len(dbs) == 1 {
		for only := range dbs {
			q.Database = only
		}
	}
	q.MaxAttempts = cmp.Or(q.MaxAttempts, DefaultMaxAttempts)
	q.Backoff = cmp.Or(q.Backoff, DefaultBackoff)
	q.BackoffMax = cmp.Or(q.BackoffMax, max(DefaultBackoffMax, q.Backoff))
	q.Jitter = max(cmp.Or(q.Jitter, DefaultJitter), 0)
	q.RetainDead = max(cmp.Or(q.RetainDead, DefaultRetainDead), 0)
	q.RetainBatch = cmp.Or(q.RetainBatch, DefaultRetainBatch)
	q.KeyTTL = cmp.Or(q.KeyTTL, DefaultKeyTTL)
	return q
}

// validate reports every problem at once, under the keys of the config file.
func (o Options) validate() (err error) {
	bad := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	if o.MaxFrame < 64<<10 || o.MaxFrame > protocol.MaxMaxFrame {
		bad("max_frame: %d bytes is outside 64 KiB to 64 MiB", o.MaxFrame)
	}
	o.Limits.validate(bad)
	if len(o.Databases) == 0 {
		bad("databases: at least one is needed")
	}
	for name, d := range o.Databases {
		if d.Backend == nil {
			bad("databases.%s: it is not open", name)
		}
		if d.SidecarTimeout < MinSidecarTimeout || d.SidecarTimeout > MaxSidecarTimeout {
			bad("databases.%s.sidecar_timeout: %v is outside %v to %v", name, d.SidecarTimeout, MinSidecarTimeout, MaxSidecarTimeout)
		}
		if d.RestartGrace < 0 || d.RestartGrace > MaxSidecarTimeout {
			bad("databases.%s.restart_grace: %v is outside 0s to %v", name, d.RestartGrace, MaxSidecarTimeout)
		}
	}
	for i := range o.Sockets {
		o.Sockets[i].checkRules(bad)
	}
	o.checkInherited(bad)
	for name, q := range o.Queues {
		q.validate(func(key, format string, args ...any) {
			bad("queues.%s.%s: %s", name, key, fmt.Sprintf(format, args...))
		}, o.Databases)
		if name != "*" {
			if e := protocol.CheckQueueName("queues."+name, name); e != nil {
				bad("%s", e.Message)
			}
		}
	}
	return err
}

func (q Queue) validate(bad func(key, format string, args ...any), dbs map[string]Database) {
	if _, ok := dbs[q.Database]; !ok {
		bad("database", "no database %q is configured", q.Database)
	}
	if q.MaxAttempts < 1 || q.MaxAttempts > protocol.MaxMaxAttempt {
		bad("max_attempts", "%d is outside 1 to %d", q.MaxAttempts, protocol.MaxMaxAttempt)
	}
	if q.MaxReady < 0 {
		bad("max_ready", "%d is negative", q.MaxReady)
	}
	if q.Timeout < 0 {
		bad("timeout", "%v is negative", q.Timeout)
	}
	if q.Backoff < 0 || q.BackoffMax < q.Backoff {
		bad("backoff", "initial %v must lie between 0s and max %v", q.Backoff, q.BackoffMax)
	}
	if !(q.Jitter <= MaxJitter) { // also NaN
		bad("backoff", "jitter %v is above %v", q.Jitter, MaxJitter)
	}
	if q.RetainDone < 0 {
		bad("retention.done", "%v is negative", q.RetainDone)
	}
	if q.RetainBatch < 0 {
		bad("retention.batch", "%v is negative", q.RetainBatch)
	}
	if q.StartWithin < 0 {
		bad("start_within", "%v is negative", q.StartWithin)
	}
	if q.KeyTTL < 0 {
		bad("key_ttl", "%v is negative", q.KeyTTL)
	}
}

// Defaults of Limits.
const (
	DefaultConnections       = 10_000
	DefaultJobsPerConnection = 10_000
	DefaultBufferMemory      = quota.DefaultBufferMemory
	DefaultQueueNames        = 10_000
)

// Limits bound the resources that clients can use. Only the client over a limit is refused, with `busy`.
type Limits struct {
	Connections       int // in total. Defaults to 10,000
	PerUser           int // connections of one user; 0: only Connections limits them
	JobsPerConnection int // jobs that one connection holds. Defaults to 10,000
	BufferMemory      int // bytes of messages, see quota.Memory; 1 MiB at least. Defaults to 256 MiB
	QueueNames        int // names of queues of the "*" entry that one user's clients use. Defaults to 10,000
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, DefaultConnections)
	l.JobsPerConnection = cmp.Or(l.JobsPerConnection, DefaultJobsPerConnection)
	l.BufferMemory = cmp.Or(l.BufferMemory, DefaultBufferMemory)
	l.QueueNames = cmp.Or(l.QueueNames, DefaultQueueNames)
	return l
}

func (l Limits) validate(bad func(format string, args ...any)) {
	for key, n := range map[string]int{"connections": l.Connections, "jobs_per_connection": l.JobsPerConnection, "queue_names": l.QueueNames} {
		if n < 1 {
			bad("limits.%s: %d is below 1", key, n)
		}
	}
	if l.BufferMemory < 1<<20 {
		bad("limits.buffer_memory: %d bytes is below 1 MiB", l.BufferMemory)
	}
	if l.PerUser < 0 {
		bad("limits.connections_per_user: %d is negative", l.PerUser)
	}
}

// checkRules reports the errors in a socket's rules.
func (s *Socket) checkRules(bad func(format string, args ...any)) {
	for i := range s.Allow {
		s.Allow[i].Check(func(field, format string, args ...any) {
			bad("listen: socket %s: allow[%d].%s: %s", s.Path, i, field, fmt.Sprintf(format, args...))
		})
	}
}

// inherited returns the inherited listener at the path, or nil.
func (o *Options) inherited(path string) *net.UnixListener {
	i := slices.IndexFunc(o.Inherited, func(ln *net.UnixListener) bool { return ln.Addr().String() == path })
	if i < 0 {
		return nil
	}
	return o.Inherited[i]
}

// checkInherited requires that every inherited listener has its own entry in Sockets, so that it is served under the
// rules of that entry. Without service it would accept connections that get no reply, and without an entry it would
// give every client all rights.
func (o *Options) checkInherited(bad func(format string, args ...any)) {
	for _, ln := range o.Inherited {
		path := ln.Addr().String() // the path that it was bound to, whatever file is there now
		if !slices.ContainsFunc(o.Sockets, func(s Socket) bool { return s.Path == path }) {
			bad("listen: the service manager hands over the socket %s, which is not in the list: add it with just this path, "+
				"or take it out of the socket unit, and restart that and the service", path)
		}
	}
}
