package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/engines"
	"github.com/qsidecar/qsidecar/protocol"
)

// check reports values that are out of range or contradict each other, by path.
func (c *Config) check(bad func(path, format string, args ...any)) {
	for i, l := range c.Listen {
		path := fmt.Sprintf("listen[%d]", i)
		if l.Socket != "" {
			c.Listen[i].Socket = filepath.Clean(l.Socket) // a reload identifies the socket by this path
		}
		if l.Socket == "" {
			bad(path+".socket", "it is missing: write the path of the Unix socket")
		} else if err := checkSocketPath(l.Socket); err != nil {
			bad(path+".socket", "%v", err)
		}
		if j := slices.IndexFunc(c.Listen[:i], func(o listenConfig) bool { return l.Socket != "" && samePath(o.Socket, l.Socket) }); j >= 0 {
			bad(path+".socket", "%s is here twice%s", l.Socket, spelledAs(l.Socket, c.Listen[j].Socket))
		}
		checkGroup(path, l.Group, bad)
		if l.Allow != nil && len(l.Allow) == 0 {
			bad(path+".allow", "an empty list allows nothing: leave the key out to allow all, or the socket")
		}
		for j := range l.Allow {
			l.Allow[j].check(fmt.Sprintf("%s.allow[%d]", path, j), bad)
		}
	}
	for name, d := range c.Databases {
		d.check("databases."+name, bad)
	}
	between(bad, "drain_timeout", c.DrainTimeout, 0, duration(24*time.Hour))
	if c.MaxFrame < 64<<10 || c.MaxFrame > protocol.MaxMaxFrame {
		bad("max_frame", "%v is outside 64KiB to 64MiB", c.MaxFrame)
	}
	c.Limits.check(bad)
	c.Admin.check(c, bad)
	c.Traces.check(bad)
	inherited := make(problemsByKey)
	c.Defaults.check("defaults", c, inherited.recording("defaults", bad))
	if len(c.Queues) == 0 && c.Defaults.Database == "" && len(c.Databases) > 1 {
		bad("databases", "which one do queues use? Name it in defaults.database")
	}
	for name, q := range c.Queues {
		path := "queues." + name
		if name != "*" {
			if e := protocol.CheckQueueName("queues", name); e != nil {
				bad(path, "%s", queueNameText(name, e))
			}
		}
		q.withDefaults(c.Defaults).check(path, c, inherited.withoutInherited(path, &q, bad))
		q.adoptedQueue.check(path, q.Order, bad)
		if q.adopts() && q.StartWithin != nil && *q.StartWithin > 0 {
			bad(path+".start_within", "jobs in an adopted table don't expire: leave it out")
		}
		if engine, _ := c.Engine(c.databaseOf(q)); engine == "sqlserver" && q.StartWithin != nil && *q.StartWithin > 0 {
			bad(path+".start_within", "jobs in a database on SQL Server don't expire: leave it out")
		}
		if name := c.databaseOf(q); q.adopts() && c.Databases[name].ReplicaURL != "" {
			bad("databases."+name+".replica_url", "%s is in an adopted table, whose statistics come from the primary only: leave replica_url out", path)
		}
		if d, ok := c.Databases[c.databaseOf(q)]; ok && q.Notify != "" && !bool(d.Notify) {
			bad(path+".notify", "the database %s has notify: off, so nothing listens: leave one of them out", c.databaseOf(q))
		}
	}
}

func (d Database) check(path string, bad func(path, format string, args ...any)) {
	if d.URL == "" {
		bad(path+".url", "it is missing: write one, for example sqlite:/var/lib/qsidecar/qsidecar.db")
	} else if u, err := engines.ParseURL(d.URL); err != nil {
		bad(path+".url", "%v", err)
	} else if u.File && d.PasswordFile != "" {
		bad(path+".password_file", "an SQLite file has none: leave it out")
	}
	d.checkReplica(path+".replica_url", bad)
	if d.MaxConnections < 4 || d.MaxConnections > 1000 {
		bad(path+".max_connections", "%d is outside 4 to 1000", d.MaxConnections)
	}
	if d.MaxTransactions < 1 || d.MaxTransactions > 1000 {
		bad(path+".max_transactions", "%d is outside 1 to 1000", d.MaxTransactions)
	}
	if !schemaName.MatchString(d.Schema) {
		bad(path+".schema", "%q must be lower-case letters, digits and _, at most 48, beginning with no digit", d.Schema)
	}
	between(bad, path+".sidecar_timeout", d.SidecarTimeout, duration(bridge.MinSidecarTimeout), duration(bridge.MaxSidecarTimeout))
	if d.RestartGrace != nil {
		between(bad, path+".restart_grace", *d.RestartGrace, 0, duration(bridge.MaxSidecarTimeout))
	}
}

// checkReplica reports a replica that can't be one of the database.
func (d Database) checkReplica(path string, bad reportFunc) {
	if d.ReplicaURL == "" {
		return
	}
	primary, unknown := engines.ParseURL(d.URL)
	replica, err := engines.ParseURL(d.ReplicaURL)
	switch {
	case err != nil:
		bad(path, "%v", err)
	case unknown != nil:
	case !primary.Replicas:
		bad(path, "statistics of %s come from the database itself, because only PostgreSQL, MySQL and MariaDB have replicas that the sidecar reads: leave it out", primary.Name)
	case replica.Name != primary.Name:
		bad(path, "a database of %s can't have a replica of %s: name a replica of the server in url", primary.Name, replica.Name)
	}
}

// queueNameText returns the error of a queue's name without the field: the caller prints the path instead.
func queueNameText(name string, e *protocol.Error) string {
	text := strings.TrimPrefix(e.Message, "queues: ")
	if strings.Contains(name, "*") {
		text += `; only "*" alone is for other names`
	}
	return text
}

func (d defaultsConfig) check(path string, c *Config, bad func(path, format string, args ...any)) {
	if _, ok := c.Databases[d.Database]; d.Database != "" && !ok && (len(c.Databases) > 0 || d.Database != c.onlyDatabase()) {
		bad(path+".database", "no database %q is configured: name one of %s", d.Database, strings.Join(slices.Sorted(maps.Keys(c.Databases)), ", "))
	}
	if d.Database == "" && len(c.Databases) > 1 && path != "defaults" {
		bad(path, "which database? name one here, or in defaults.database")
	}
	if d.MaxAttempts < 1 || d.MaxAttempts > protocol.MaxMaxAttempt {
		bad(path+".max_attempts", "%d is outside 1 to %d", d.MaxAttempts, protocol.MaxMaxAttempt)
	}
	const years = duration(protocol.MaxTimeoutMS * time.Millisecond)
	between(bad, path+".timeout", d.Timeout, 0, years)
	between(bad, path+".backoff.initial", d.Backoff.Initial, duration(time.Millisecond), years)
	if d.Backoff.Max < d.Backoff.Initial {
		bad(path+".backoff.max", "%v is shorter than backoff.initial (%v)", d.Backoff.Max, d.Backoff.Initial)
	}
	between(bad, path+".backoff.max", d.Backoff.Max, min(d.Backoff.Max, years), years)
	if most := percent(bridge.MaxJitter * 100); d.Backoff.Jitter > most {
		bad(path+".backoff.jitter", "%v is outside 0%% to %v", d.Backoff.Jitter, most)
	}
	between(bad, path+".retention.done", d.Retention.Done, 0, years)
	if d.Retention.Dead != forever {
		between(bad, path+".retention.dead", duration(d.Retention.Dead), duration(time.Second), years)
	}
	between(bad, path+".retention.batch", d.Retention.Batch, duration(time.Minute), years)
	between(bad, path+".start_within", d.StartWithin, 0, years)
	between(bad, path+".key_ttl", d.KeyTTL, duration(time.Second), years)
	if d.MaxReady < 0 {
		bad(path+".max_ready", "%d is negative; 0 means no limit", d.MaxReady)
	}
}

func between(bad func(path, format string, args ...any), path string, d, least, most duration) {
	if d < least || d > most {
		bad(path, "%v is outside %v to %v", d, least, most)
	}
}
