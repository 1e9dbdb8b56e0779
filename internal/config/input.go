package config

import (
	"cmp"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/engines"
)

// Input holds the sources of a config: flags, a file and the environment.
type Input struct {
	File     string   // --config, or what FindFile found; empty: the built-in defaults
	Database string   // --database
	Socket   string   // --socket
	LogLevel LogLevel // --log-level

	Env          func(name string) (string, bool)
	Inherited    []string // paths of the sockets that the service manager opened
	SystemSocket string   // instead of SystemSocket, for tests on a host that has a sidecar

	Once        bool          // the files are read once, so they can be pipes
	PipeTimeout time.Duration // 0: 10 s

	emptyFile bool // QSIDECAR_CONFIG is set and empty; set by FindFile
}

func (i Input) getenv(name string) string {
	value, _ := i.Env(name)
	return value
}

// emptyVariable is the error for a variable that probably has the value of an unset one. With a default instead, the
// jobs would be in another database.
func emptyVariable(name string) error {
	return Errorf("%s is set and empty: give it a value, or unset it for the default", name)
}

// Load combines flags, file, environment and defaults; the first that sets a value wins.
// With an error it returns what could be read of the file.
func (i Input) Load() (Config, error) {
	c := defaultConfig()
	if i.emptyFile {
		return c, emptyVariable("QSIDECAR_CONFIG")
	}
	if err := i.CheckSocket(); err != nil {
		return c, err
	}
	if i.File != "" {
		var err error
		if c, err = load(i.File, i.readFile, i.Env); err != nil {
			return c, err
		}
	}
	if i.Database != "" && len(c.Databases) > 0 {
		return c, Errorf("--database and `databases` in %s both name the database: leave one out, or read no config file with --config %s", i.File, NoFile)
	}
	db := ""
	if len(c.Databases) == 0 {
		var err error
		if db, err = i.DatabaseURL(); err != nil {
			return c, err
		}
		if file, ok := strings.CutPrefix(cmp.Or(i.Database, i.getenv("QSIDECAR_DATABASE")), "@"); ok {
			c.urlFile = file
		}
		source := "QSIDECAR_DATABASE"
		if i.Database != "" {
			source = "--database"
		}
		if _, err := engines.ParseURL(db); err != nil {
			return c, Errorf("%s: %w", source, err)
		}
	}
	if i.Socket != "" {
		c.Listen = nil // the flag replaces the file's sockets
	}
	c.addSockets(i.inheritedSockets())
	c.fillIn(i.servedSocket(), db)
	if i.LogLevel != "" {
		c.Log.Level = i.LogLevel
	}
	return c, nil
}

// databaseFlag returns the URL of --database, which is the URL itself or @FILE. It rejects a
// password, because every user of the host can see a command line.
func (i Input) databaseFlag(s string) (string, error) {
	if strings.HasPrefix(s, "@") {
		return i.databaseFromFile(s[1:])
	}
	if engines.HasCertainPassword(s) {
		return "", Errorf("--database: a password in the command line is seen by every user of this host: " +
			"put the URL into QSIDECAR_DATABASE, or into a file and give --database @FILE")
	}
	return s, nil
}

func (i Input) databaseFromFile(path string) (string, error) {
	b, err := i.readFile(path)
	if err != nil {
		return "", Errorf("the database's URL cannot be read: %w", err)
	}
	s := strings.TrimSpace(string(b))
	if s == "" || strings.ContainsAny(s, "\r\n") {
		return "", Errorf("%s should hold one line, the database's URL", path)
	}
	return s, nil
}

// DatabaseURL returns the URL of the only database, from the flag, the environment or the
// embedded default.
func (i Input) DatabaseURL() (string, error) {
	if i.Database != "" {
		return i.databaseFlag(i.Database)
	}
	if s, set := i.Env("QSIDECAR_DATABASE"); set {
		if s == "" {
			return "", emptyVariable("QSIDECAR_DATABASE")
		}
		if strings.HasPrefix(s, "@") {
			return i.databaseFromFile(s[1:])
		}
		return s, nil
	}
	return i.defaultDatabase()
}
