package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/engines"
	"github.com/qsidecar/qsidecar/protocol"
)

// config is the config file. deploy/qsidecar.example.yaml documents every key at
// its default, and a test compares the two.
type Config struct {
	Listen       []listenConfig         `yaml:"listen"`
	Databases    map[string]Database    `yaml:"databases"`
	Defaults     defaultsConfig         `yaml:"defaults"`
	Queues       map[string]queueConfig `yaml:"queues"`
	DrainTimeout duration               `yaml:"drain_timeout"`
	MaxFrame     size                   `yaml:"max_frame"`
	Limits       limitsConfig           `yaml:"limits"`
	Log          Log                    `yaml:"log"`
	Admin        Admin                  `yaml:"admin"`

	urlFile string // that the only database's URL was read from; empty: none
}

type listenConfig struct {
	Socket string   `yaml:"socket"`
	Mode   fileMode `yaml:"mode"`
	Group  string   `yaml:"group"`
	// nil: whoever can connect may do everything.
	Allow []allowConfig `yaml:"allow"`
}

type Database struct {
	URL          string    `yaml:"url"`
	HostLease    duration  `yaml:"host_lease"`
	RestartGrace *duration `yaml:"restart_grace"` // nil: host_lease

	// A server's alone.
	PasswordFile   string `yaml:"password_file"`
	MaxConnections int    `yaml:"max_connections"`
	MaxHeld        int    `yaml:"max_held"` // further ones, each for a held job
	Schema         string `yaml:"schema"`
	Notify         onOff  `yaml:"notify"`
}

type backoffConfig struct {
	Initial duration `yaml:"initial"`
	Max     duration `yaml:"max"`
}

// limitsConfig bounds what clients may take.
type limitsConfig struct {
	Connections int  `yaml:"connections"`
	PerUser     int  `yaml:"connections_per_user"`
	Held        int  `yaml:"held"`
	Buffered    size `yaml:"buffered"`
	QueueNames  int  `yaml:"queue_names"`
}

func (l limitsConfig) bridge() bridge.Limits {
	return bridge.Limits{Connections: l.Connections, PerUser: l.PerUser, Held: l.Held, Buffered: int(l.Buffered), QueueNames: l.QueueNames}
}

func (l limitsConfig) check(bad func(path, format string, args ...any)) {
	for key, n := range map[string]int{"connections": l.Connections, "held": l.Held, "queue_names": l.QueueNames} {
		if n < 1 || n > 1_000_000 {
			bad("limits."+key, "%d is outside 1 to 1000000", n)
		}
	}
	if l.Buffered < 1<<20 {
		bad("limits.buffered", "%v is below 1MiB", l.Buffered)
	}
	if l.PerUser < 0 || l.PerUser > 1_000_000 {
		bad("limits.connections_per_user", "%d is outside 0 to 1000000", l.PerUser)
	}
}

// defaultsConfig is what holds for a queue that does not say otherwise.
type defaultsConfig struct {
	Database    string        `yaml:"database"` // empty: the only one
	MaxAttempts int           `yaml:"max_attempts"`
	Timeout     duration      `yaml:"timeout"`
	Order       order         `yaml:"order"`
	Backoff     backoffConfig `yaml:"backoff"`
	Keep        duration      `yaml:"keep"`
	KeepDead    retention     `yaml:"keep_dead"`
	KeyTTL      duration      `yaml:"key_ttl"`
	MaxReady    int           `yaml:"max_ready"`
}

// queueConfig is a queue's own word; what is nil comes from defaults.
type queueConfig struct {
	Database    *string             `yaml:"database"`
	MaxAttempts *int                `yaml:"max_attempts"`
	Timeout     *duration           `yaml:"timeout"`
	Order       *queueOrder         `yaml:"order"`
	Backoff     *queueBackoffConfig `yaml:"backoff"`
	Keep        *duration           `yaml:"keep"`
	KeepDead    *retention          `yaml:"keep_dead"`
	KeyTTL      *duration           `yaml:"key_ttl"`
	MaxReady    *int                `yaml:"max_ready"`

	adoptConfig
}

type queueBackoffConfig struct {
	Initial *duration `yaml:"initial"`
	Max     *duration `yaml:"max"`
}

type Log struct {
	Level  LogLevel  `yaml:"level"`
	Format logFormat `yaml:"format"`
}

func (l Log) JSON() bool { return l.Format == "json" }

// schemaName is what a schema may be called without quotes.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

const DefaultSchema = "qsidecar"

const defaultMode = fileMode(bridge.DefaultSocketMode)

func newListen() listenConfig { return listenConfig{Mode: defaultMode} }
func newDatabase() Database {
	return Database{HostLease: duration(bridge.DefaultHostLease), MaxConnections: 8, MaxHeld: adopted.DefaultMaxHeld, Schema: DefaultSchema, Notify: true}
}

// defaultConfig is the config of a file that says nothing: the places are filled
// in by the app, which knows the environment.
func defaultConfig() Config {
	return Config{
		Defaults: defaultsConfig{
			MaxAttempts: bridge.DefaultMaxAttempts,
			Order:       "fifo",
			Backoff:     backoffConfig{duration(bridge.DefaultBackoff), duration(bridge.DefaultBackoffMax)},
			KeepDead:    retention(bridge.DefaultKeepDead),
			KeyTTL:      duration(bridge.DefaultKeyTTL),
		},
		DrainTimeout: duration(bridge.DefaultDrainTimeout),
		MaxFrame:     protocol.DefaultMaxFrame,
		Limits:       limitsConfig{Connections: bridge.DefaultConnections, Held: bridge.DefaultHeldJobs, Buffered: bridge.DefaultBuffered, QueueNames: bridge.DefaultQueueNames},
		Log:          Log{Level: "info", Format: "text"},
		Admin:        Admin{Mode: defaultMode, QueueLabels: bridge.DefaultQueueLabels},
	}
}

// listenOn are the sockets of a config that names none.
func (c *Config) listenOn(paths []string) {
	if len(c.Listen) > 0 {
		return
	}
	for _, path := range paths {
		l := newListen()
		l.Socket = path
		c.Listen = append(c.Listen, l)
	}
}

// fill gives the places that the file did not name: these are the app's to know.
func (c *Config) fill(socket, database string) {
	if len(c.Listen) == 0 {
		l := newListen()
		l.Socket = socket
		c.Listen = []listenConfig{l}
	}
	if len(c.Databases) == 0 {
		d := newDatabase()
		d.URL = database
		c.Databases = map[string]Database{cmp.Or(c.Defaults.Database, "main"): d}
	}
	if c.Queues == nil {
		c.Queues = map[string]queueConfig{"*": {}}
	}
}

// Error says what is wrong with a config, or with the flags and the environment that name one.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

// inDatabase says of which database an error is, where there are several.
func (c *Config) ErrorIn(name string, err error) error {
	if len(c.Databases) == 1 {
		return err
	}
	return fmt.Errorf("databases.%s: %w", name, err)
}

// password is what the password_file holds; empty: there is none. In a file there must be
// one: whoever writes it in place empties it first, and some servers let in without.
func (d Database) ReadPassword() (string, error) {
	if d.PasswordFile == "" {
		return "", nil
	}
	secret, err := readFile(d.PasswordFile)
	if err != nil {
		return "", Errorf("the database's password_file cannot be read: %w", err)
	}
	word := strings.TrimRight(string(secret), "\r\n")
	if word == "" {
		return "", Errorf("the database's password_file: %s is empty: write the password into it, or leave password_file out", d.PasswordFile)
	}
	return word, nil
}

// Default is the config of a file that says nothing, with that socket and database.
func Default(socket, database string) Config {
	c := defaultConfig()
	c.fill(socket, database)
	return c
}

// loadConfig reads a config file. The error shows everything that is wrong, with
// line and column; the config is then what could be read of it.
func load(path string, read func(string) ([]byte, error), env func(string) (string, bool)) (Config, error) {
	src, err := read(path)
	if err != nil {
		return Config{}, Errorf("the config file cannot be read: %w", err)
	}
	return Parse(path, src, env)
}

func Parse(name string, src []byte, env func(string) (string, bool)) (Config, error) {
	c := defaultConfig()
	d := &yamlDecoder{name: name, src: string(src), env: env}
	d.decode(&c)
	c.check(d.bad)
	if err := d.err(); err != nil {
		return c, &Error{err}
	}
	return c, nil
}

// check reports what is out of range or does not fit together, by path.
func (c *Config) check(bad func(path, format string, args ...any)) {
	for i, l := range c.Listen {
		path := fmt.Sprintf("listen[%d]", i)
		if l.Socket != "" {
			c.Listen[i].Socket = filepath.Clean(l.Socket) // by which it is known from one reload to the next
		}
		if l.Socket == "" {
			bad(path, "socket is missing: the path of the Unix socket")
		}
		if j := slices.IndexFunc(c.Listen[:i], func(o listenConfig) bool { return l.Socket != "" && samePath(o.Socket, l.Socket) }); j >= 0 {
			bad(path+".socket", "%s stands here twice%s", l.Socket, asOther(l.Socket, c.Listen[j].Socket))
		}
		checkGroup(path, l.Group, bad)
		if l.Allow != nil && len(l.Allow) == 0 {
			bad(path+".allow", "an empty list lets nobody do anything: leave the key out to allow all, or the socket")
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
	inherited := make(problemsByKey)
	c.Defaults.check("defaults", c, inherited.noting("defaults", bad))
	for name, q := range c.Queues {
		path := "queues." + name
		if name != "*" {
			if e := protocol.CheckQueueName("queues", name); e != nil {
				bad(path, "%s", e.Message)
			}
		}
		q.over(c.Defaults).check(path, c, inherited.leftOut(path, &q, bad))
		q.adoptConfig.check(path, q.Order, bad)
		if d, ok := c.Databases[c.databaseOf(q)]; ok && q.Notify != "" && !bool(d.Notify) {
			bad(path+".notify", "the database %s has notify: off, so that nobody listens: leave one of them out", c.databaseOf(q))
		}
	}
}

func (d Database) check(path string, bad func(path, format string, args ...any)) {
	if d.URL == "" {
		bad(path, "url is missing, for example sqlite:/var/lib/qsidecar/qsidecar.db")
	} else if u, err := engines.ParseURL(d.URL); err != nil {
		bad(path+".url", "%v", err)
	} else if u.File && d.PasswordFile != "" {
		bad(path+".password_file", "an SQLite file has none: leave it out")
	}
	if d.MaxConnections < 4 || d.MaxConnections > 1000 {
		bad(path+".max_connections", "%d is outside 4 to 1000", d.MaxConnections)
	}
	if d.MaxHeld < 1 || d.MaxHeld > 1000 {
		bad(path+".max_held", "%d is outside 1 to 1000", d.MaxHeld)
	}
	if !schemaName.MatchString(d.Schema) {
		bad(path+".schema", "%q must be lower-case letters, digits and _, at most 48, beginning with no digit", d.Schema)
	}
	between(bad, path+".host_lease", d.HostLease, duration(bridge.MinHostLease), duration(bridge.MaxHostLease))
	if d.RestartGrace != nil {
		between(bad, path+".restart_grace", *d.RestartGrace, 0, duration(bridge.MaxHostLease))
	}
}

func (d defaultsConfig) check(path string, c *Config, bad func(path, format string, args ...any)) {
	if _, ok := c.Databases[d.Database]; d.Database != "" && !ok && len(c.Databases) > 0 {
		bad(path+".database", "no database %q is configured", d.Database)
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
	between(bad, path+".backoff.max", d.Backoff.Max, d.Backoff.Initial, years)
	between(bad, path+".keep", d.Keep, 0, years)
	if d.KeepDead != forever {
		between(bad, path+".keep_dead", duration(d.KeepDead), duration(time.Second), years)
	}
	between(bad, path+".key_ttl", d.KeyTTL, duration(time.Second), years)
	if d.MaxReady < 0 {
		bad(path+".max_ready", "%d is negative; 0 is no limit", d.MaxReady)
	}
}

func between(bad func(path, format string, args ...any), path string, d, least, most duration) {
	if d < least || d > most {
		bad(path, "%v is outside %v to %v", d, least, most)
	}
}

// over is the queue's config with what it leaves open taken from the defaults.
func (q queueConfig) over(d defaultsConfig) defaultsConfig {
	set(&d.Database, q.Database)
	set(&d.MaxAttempts, q.MaxAttempts)
	set(&d.Timeout, q.Timeout)
	if q.Order != nil && q.Order.order != "" {
		d.Order = q.Order.order
	}
	if q.Backoff != nil {
		set(&d.Backoff.Initial, q.Backoff.Initial)
		set(&d.Backoff.Max, q.Backoff.Max)
	}
	set(&d.Keep, q.Keep)
	set(&d.KeepDead, q.KeepDead)
	set(&d.KeyTTL, q.KeyTTL)
	set(&d.MaxReady, q.MaxReady)
	return d
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// options are the bridge's, over open databases.
func (c *Config) BridgeOptions(open map[string]backends.Backend) bridge.Options {
	o := bridge.Options{
		Databases:    make(map[string]bridge.Database),
		Queues:       make(map[string]bridge.Queue),
		MaxFrame:     int(c.MaxFrame),
		DrainTimeout: orNegative(time.Duration(c.DrainTimeout)),
		Limits:       c.Limits.bridge(),
		QueueLabels:  orMinus(c.Admin.QueueLabels),
	}
	for _, l := range c.Listen {
		o.Sockets = append(o.Sockets, bridge.Socket{Path: l.Socket, Mode: fs.FileMode(l.Mode), Group: l.Group, Allow: rules(l.Allow)})
	}
	for name, d := range c.Databases {
		db := bridge.Database{Backend: open[name], HostLease: time.Duration(d.HostLease), RestartGrace: time.Duration(d.HostLease)}
		if d.RestartGrace != nil {
			db.RestartGrace = max(time.Duration(*d.RestartGrace), time.Millisecond) // 0 would be the default
		}
		o.Databases[name] = db
	}
	for name, q := range c.Queues {
		d := q.over(c.Defaults)
		d.Database = c.databaseOf(q)
		o.Queues[name] = bridge.Queue{
			Database: d.Database, MaxAttempts: d.MaxAttempts, Timeout: time.Duration(d.Timeout),
			Backoff: time.Duration(d.Backoff.Initial), BackoffMax: time.Duration(d.Backoff.Max),
			Keep: time.Duration(d.Keep), KeepDead: time.Duration(d.KeepDead), KeyTTL: time.Duration(d.KeyTTL),
			LIFO: d.Order == "lifo", MaxReady: d.MaxReady,
		}
	}
	return o
}

// orMinus turns the config's 0 (none) into the bridge's, whose 0 is the default.
func orMinus(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// orNegative turns the config's 0 (none) into the bridge's, whose 0 is the default.
func orNegative(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// keepUsable leaves what can be looked at in a config that has errors: its databases without
// any, and in those the tables of queues without any.
func (c *Config) KeepUsable(usage error) {
	for name, d := range c.Databases {
		d.check("", func(string, string, ...any) { delete(c.Databases, name) })
	}
	maps.DeleteFunc(c.Queues, func(name string, q queueConfig) bool {
		return !q.adopts() || slices.ContainsFunc(Problems(usage), func(text string) bool {
			return strings.Contains(text, "queues."+name+".") || strings.Contains(text, "queues."+name+":")
		})
	})
	c.Log = defaultConfig().Log
}

// configProblems are the single errors of a config.
func Problems(err error) (texts []string) {
	var file *configError
	switch joined, ok := err.(interface{ Unwrap() []error }); {
	case err == nil:
		return nil
	case ok:
		for _, e := range joined.Unwrap() {
			texts = append(texts, Problems(e)...)
		}
		return texts
	case errors.As(err, &file):
		return file.each
	}
	return []string{err.Error()}
}

// Engine returns the engine of a database, and whether the database is a file of this host.
// It returns "" if the URL is invalid.
func (c *Config) Engine(database string) (name string, isFile bool) {
	u, err := engines.ParseURL(c.Databases[database].URL)
	if err != nil {
		return "", false
	}
	return u.Name, u.File
}
