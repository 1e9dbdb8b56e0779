package config

import (
	"io/fs"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/protocol"
)

// withDefaults returns the settings of a queue, with defaults for the keys that it doesn't
// set.
func (q queueConfig) withDefaults(d defaultsConfig) defaultsConfig {
	set(&d.Database, q.Database)
	set(&d.MaxAttempts, q.MaxAttempts)
	set(&d.Timeout, q.Timeout)
	if q.Order != nil && q.Order.order != "" {
		d.Order = q.Order.order
	}
	if q.Backoff != nil {
		set(&d.Backoff.Initial, q.Backoff.Initial)
		set(&d.Backoff.Max, q.Backoff.Max)
		set(&d.Backoff.Jitter, q.Backoff.Jitter)
	}
	if q.Retention != nil {
		set(&d.Retention.Done, q.Retention.Done)
		set(&d.Retention.Dead, q.Retention.Dead)
		set(&d.Retention.Batch, q.Retention.Batch)
	}
	set(&d.KeyTTL, q.KeyTTL)
	set(&d.StartWithin, q.StartWithin)
	set(&d.OnExpiry, q.OnExpiry)
	set(&d.MaxReady, q.MaxReady)
	return d
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// BridgeOptions returns the options of the bridge for open databases.
func (c *Config) BridgeOptions(open map[string]backends.Backend) bridge.Options {
	o := bridge.Options{
		Databases:    make(map[string]bridge.Database),
		Queues:       make(map[string]bridge.Queue),
		MaxFrame:     int(c.MaxFrame),
		DrainTimeout: zeroToNegative(time.Duration(c.DrainTimeout)),
		Limits:       c.Limits.bridge(),
		QueueLabels:  zeroToMinusOne(c.Admin.QueueLabels),
	}
	for _, l := range c.Listen {
		o.Sockets = append(o.Sockets, bridge.Socket{Path: l.Socket, Mode: fs.FileMode(l.Mode), Group: l.Group, Allow: rules(l.Allow)})
	}
	for name, d := range c.Databases {
		db := bridge.Database{Backend: open[name], SidecarTimeout: time.Duration(d.SidecarTimeout), RestartGrace: time.Duration(d.SidecarTimeout)}
		if d.RestartGrace != nil {
			db.RestartGrace = max(time.Duration(*d.RestartGrace), time.Millisecond) // 0 would select the bridge's default
		}
		o.Databases[name] = db
	}
	for name, q := range c.Queues {
		d := q.withDefaults(c.Defaults)
		d.Database = c.databaseOf(q)
		if engine, _ := c.Engine(d.Database); q.adopts() || engine == "sqlserver" { // its jobs can't expire
			d.StartWithin = 0
		}
		o.Queues[name] = bridge.Queue{
			Database: d.Database, MaxAttempts: d.MaxAttempts, Timeout: time.Duration(d.Timeout),
			Backoff: time.Duration(d.Backoff.Initial), BackoffMax: time.Duration(d.Backoff.Max), Jitter: d.Backoff.jitter(),
			RetainDone: time.Duration(d.Retention.Done), RetainDead: time.Duration(d.Retention.Dead), RetainBatch: time.Duration(d.Retention.Batch), KeyTTL: time.Duration(d.KeyTTL),
			LIFO: d.Order == "lifo", MaxReady: d.MaxReady, StartWithin: time.Duration(d.StartWithin), RemoveExpired: d.OnExpiry == protocol.ExpireDelete,
		}
	}
	return o
}

// jitter returns the jitter as a fraction, or -1 for none, because 0 is the bridge's default.
func (b backoffConfig) jitter() float64 {
	if b.Jitter == 0 {
		return -1
	}
	return float64(b.Jitter) / 100
}

// zeroToMinusOne converts the config's 0 (none) to the bridge's -1, because 0 is the
// bridge's default.
func zeroToMinusOne(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// zeroToNegative converts the config's 0 (none) to the bridge's -1, because 0 is the
// bridge's default.
func zeroToNegative(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
