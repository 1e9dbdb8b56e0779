package config

import (
	"cmp"
	"regexp"

	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/engines"
	"github.com/qsidecar/qsidecar/protocol"
)

// Config is the config file. deploy/qsidecar.example.yaml documents every key at its
// default, and a test compares the two.
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
	Traces       Traces                 `yaml:"traces"`

	urlFile string // the file that contains the URL of the only database; empty: none
}

type listenConfig struct {
	Socket string   `yaml:"socket"`
	Mode   fileMode `yaml:"mode"`
	Group  string   `yaml:"group"`
	// nil: any client that can connect is permitted everything.
	Allow []allowConfig `yaml:"allow"`
}

// Database is one database of the section `databases`.
type Database struct {
	URL            string    `yaml:"url"`
	SidecarTimeout duration  `yaml:"sidecar_timeout"`
	RestartGrace   *duration `yaml:"restart_grace"` // nil: sidecar_timeout

	// The remaining keys are for servers only.
	ReplicaURL      string `yaml:"replica_url"` // empty: none
	PasswordFile    string `yaml:"password_file"`
	MaxConnections  int    `yaml:"max_connections"`
	MaxTransactions int    `yaml:"max_transactions"` // additional connections, one for each job claimed in a transaction
	Schema          string `yaml:"schema"`
	Notify          onOff  `yaml:"notify"`
}

type backoffConfig struct {
	Initial duration `yaml:"initial"`
	Max     duration `yaml:"max"`
	Jitter  percent  `yaml:"jitter"`
}

// retentionConfig is how long finished jobs stay.
type retentionConfig struct {
	Done  duration          `yaml:"done"`
	Dead  durationOrForever `yaml:"dead"`
	Batch duration          `yaml:"batch"` // of batches that don't end
}

// limitsConfig limits what clients can use.
type limitsConfig struct {
	Connections       int  `yaml:"connections"`
	PerUser           int  `yaml:"connections_per_user"`
	JobsPerConnection int  `yaml:"jobs_per_connection"`
	BufferMemory      size `yaml:"buffer_memory"`
	QueueNames        int  `yaml:"queue_names"`
}

func (l limitsConfig) bridge() bridge.Limits {
	return bridge.Limits{Connections: l.Connections, PerUser: l.PerUser, JobsPerConnection: l.JobsPerConnection, BufferMemory: int(l.BufferMemory), QueueNames: l.QueueNames}
}

func (l limitsConfig) check(bad func(path, format string, args ...any)) {
	for key, n := range map[string]int{"connections": l.Connections, "jobs_per_connection": l.JobsPerConnection, "queue_names": l.QueueNames} {
		if n < 1 || n > 1_000_000 {
			bad("limits."+key, "%d is outside 1 to 1000000", n)
		}
	}
	if l.BufferMemory < 1<<20 {
		bad("limits.buffer_memory", "%v is below 1MiB", l.BufferMemory)
	}
	if l.PerUser < 0 || l.PerUser > 1_000_000 {
		bad("limits.connections_per_user", "%d is outside 0 to 1000000", l.PerUser)
	}
}

// defaultsConfig holds the defaults of queues.
type defaultsConfig struct {
	Database    string          `yaml:"database"` // empty: the only one
	MaxAttempts int             `yaml:"max_attempts"`
	Timeout     duration        `yaml:"timeout"`
	Order       order           `yaml:"order"`
	Backoff     backoffConfig   `yaml:"backoff"`
	Retention   retentionConfig `yaml:"retention"`
	KeyTTL      duration        `yaml:"key_ttl"`
	StartWithin duration        `yaml:"start_within"`
	OnExpiry    onExpiry        `yaml:"on_expiry"`
	MaxReady    int             `yaml:"max_ready"`
}

// queueConfig holds the settings of one queue. A nil field takes the default.
type queueConfig struct {
	Database    *string               `yaml:"database"`
	MaxAttempts *int                  `yaml:"max_attempts"`
	Timeout     *duration             `yaml:"timeout"`
	Order       *queueOrder           `yaml:"order"`
	Backoff     *queueBackoffConfig   `yaml:"backoff"`
	Retention   *queueRetentionConfig `yaml:"retention"`
	KeyTTL      *duration             `yaml:"key_ttl"`
	StartWithin *duration             `yaml:"start_within"`
	OnExpiry    *onExpiry             `yaml:"on_expiry"`
	MaxReady    *int                  `yaml:"max_ready"`

	adoptedQueue
}

type queueBackoffConfig struct {
	Initial *duration `yaml:"initial"`
	Max     *duration `yaml:"max"`
	Jitter  *percent  `yaml:"jitter"`
}

type queueRetentionConfig struct {
	Done  *duration          `yaml:"done"`
	Dead  *durationOrForever `yaml:"dead"`
	Batch *duration          `yaml:"batch"`
}

// Log is the section `log`.
type Log struct {
	Level  LogLevel  `yaml:"level"`
	Format logFormat `yaml:"format"`
}

// JSON reports whether the log is written as JSON.
func (l Log) JSON() bool { return l.Format == "json" }

// schemaName matches schema names that need no quotes.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,47}$`)

// DefaultSchema is the schema of the tables, in engines that have schemas.
const DefaultSchema = "qsidecar"

const defaultMode = fileMode(bridge.DefaultSocketMode)

func newListen() listenConfig { return listenConfig{Mode: defaultMode} }
func newDatabase() Database {
	return Database{SidecarTimeout: duration(bridge.DefaultSidecarTimeout), MaxConnections: 8, MaxTransactions: adopted.DefaultMaxTransactions, Schema: DefaultSchema, Notify: true}
}

// defaultConfig returns the defaults of a file. Load adds the socket and the database, which
// depend on the environment.
func defaultConfig() Config {
	return Config{
		Defaults: defaultsConfig{
			MaxAttempts: bridge.DefaultMaxAttempts,
			Order:       "fifo",
			Backoff:     backoffConfig{duration(bridge.DefaultBackoff), duration(bridge.DefaultBackoffMax), bridge.DefaultJitter * 100},
			Retention:   retentionConfig{Dead: durationOrForever(bridge.DefaultRetainDead), Batch: duration(bridge.DefaultRetainBatch)},
			KeyTTL:      duration(bridge.DefaultKeyTTL),
			OnExpiry:    protocol.ExpireDead,
		},
		DrainTimeout: duration(bridge.DefaultDrainTimeout),
		MaxFrame:     protocol.DefaultMaxFrame,
		Limits:       limitsConfig{Connections: bridge.DefaultConnections, JobsPerConnection: bridge.DefaultJobsPerConnection, BufferMemory: bridge.DefaultBufferMemory, QueueNames: bridge.DefaultQueueNames},
		Log:          Log{Level: "info", Format: "text"},
		Admin:        Admin{Mode: defaultMode, Access: "read", Payloads: "show", Users: map[string]string{}, QueueLabels: bridge.DefaultQueueLabels},
	}
}

// addSockets sets the sockets if the file doesn't list any.
func (c *Config) addSockets(paths []string) {
	if len(c.Listen) > 0 {
		return
	}
	for _, path := range paths {
		l := newListen()
		l.Socket = path
		c.Listen = append(c.Listen, l)
	}
}

// fillIn sets the socket, the database and the queues that the file doesn't name.
func (c *Config) fillIn(socket, database string) {
	if len(c.Listen) == 0 {
		l := newListen()
		l.Socket = socket
		c.Listen = []listenConfig{l}
	}
	if len(c.Databases) == 0 {
		d := newDatabase()
		d.URL = database
		c.Databases = map[string]Database{c.onlyDatabase(): d}
	}
	if c.Queues == nil {
		c.Queues = map[string]queueConfig{"*": {}}
	}
}

// onlyDatabase is the name of the database of a config that lists none.
func (c *Config) onlyDatabase() string { return cmp.Or(c.Defaults.Database, "main") }

// Default returns the config of an empty file, with that socket and database.
func Default(socket, database string) Config {
	c := defaultConfig()
	c.fillIn(socket, database)
	return c
}

// load reads a config file. Its error lists every problem with line and column. The config
// then contains what could be read.
func load(path string, read func(string) ([]byte, error), env func(string) (string, bool)) (Config, error) {
	src, err := read(path)
	if err != nil {
		return Config{}, Errorf("the config file cannot be read: %w", err)
	}
	return Parse(path, src, env)
}

// Parse parses the text of a config file. name is for its errors, which are like those of
// Input.Load.
func Parse(name string, src []byte, env func(string) (string, bool)) (Config, error) {
	c := defaultConfig()
	d := &yamlDecoder{name: name, src: string(src), env: env}
	d.decode(&c)
	c.check(d.reportAt)
	if err := d.err(); err != nil {
		return c, &Error{err}
	}
	return c, nil
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
