package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/mysql"
	mydiagnose "github.com/qsidecar/qsidecar/backends/mysql/diagnose"
	mymigrate "github.com/qsidecar/qsidecar/backends/mysql/migrate"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	pgmigrate "github.com/qsidecar/qsidecar/backends/postgres/migrate"
	"github.com/qsidecar/qsidecar/backends/sqlite"
	sqlitediagnose "github.com/qsidecar/qsidecar/backends/sqlite/diagnose"
	sqlitemigrate "github.com/qsidecar/qsidecar/backends/sqlite/migrate"
	"github.com/qsidecar/qsidecar/backends/sqlserver"
	msdiagnose "github.com/qsidecar/qsidecar/backends/sqlserver/diagnose"
	msmigrate "github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
	"github.com/qsidecar/qsidecar/protocol"
)

// engine is a kind of database, and all that the process knows of it.
type engine struct {
	name    string
	schemes []string // what its URLs begin with
	form    string   // how its URLs are written, for messages
	file    bool     // a file of this host: it has no password, and needs its folder

	// parse checks a URL and returns it as open wants it; nil: taken as it is. An
	// error of it shows no password.
	parse func(url string) (string, error)
	// open opens the database; with look it makes and changes nothing in it.
	open func(ctx context.Context, o opening) (adopted.Adopter, error)
	// migrations is the SQL that makes the tables out of those of the version `from`
	// (0: there are none), and gives that role what it needs to serve.
	migrations func(d databaseConfig, role string, from int) string
}

// opening is one database to be opened.
type opening struct {
	databaseConfig
	at       string // the URL as parse returned it
	password string // from password_file, in place of the URL's; empty: none
	payload  int64  // how many bytes a job's may have
	look     bool   // for Examine alone: no tables are made
	log      *slog.Logger
}

// engines are the kinds of databases that this program serves.
var engines = []engine{
	{
		name: "sqlite", schemes: []string{"sqlite"}, form: "sqlite:PATH", file: true,
		parse: parseSQLite, open: openSQLite,
		migrations: func(databaseConfig, string, int) string { return sqlitemigrate.SQL() },
	},
	{
		name: "postgres", schemes: []string{"postgres", "postgresql"}, form: "postgres://USER@HOST/DATABASE",
		open:       openPostgres,
		migrations: func(d databaseConfig, role string, from int) string { return pgmigrate.SQL(d.Schema, role, from) },
	},
	{
		name: "mysql", schemes: []string{"mysql"}, form: "mysql://USER@HOST/DATABASE",
		parse: func(url string) (string, error) { return url, mysql.CheckURL(url) },
		open:  openMySQL,
		migrations: func(d databaseConfig, role string, from int) string {
			return mymigrate.SQL(mysql.DatabaseOf(d.URL), role, from)
		},
	},
	{
		name: "sqlserver", schemes: []string{"sqlserver"}, form: "sqlserver://USER@HOST?database=NAME",
		parse: func(url string) (string, error) { return url, sqlserver.CheckURL(url) },
		open:  openSQLServer,
		migrations: func(d databaseConfig, role string, from int) string {
			return msmigrate.SQL(d.Schema, role, from)
		},
	},
}

// databaseURL is where a database is, by engine.
type databaseURL struct {
	*engine
	at string // as engine.open wants it; may hold a password
}

func databaseForms() string {
	var forms []string
	for _, e := range engines {
		forms = append(forms, e.form)
	}
	last := len(forms) - 1
	return strings.Join(forms[:last], ", ") + " or " + forms[last]
}

// parseDatabaseURL reads a database's address. Its errors show no password.
func parseDatabaseURL(s string) (databaseURL, error) {
	scheme, _, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(scheme, `/\. `) {
		return databaseURL{}, errors.New("a database is written " + databaseForms())
	}
	for i, e := range engines {
		if !slices.Contains(e.schemes, scheme) {
			continue
		}
		if !e.file {
			if err := checkAddress(s); err != nil {
				return databaseURL{}, err
			}
		}
		u := databaseURL{engine: &engines[i], at: s}
		if e.parse == nil {
			return u, nil
		}
		var err error
		u.at, err = e.parse(s)
		return u, err
	}
	if !strings.HasPrefix(s, scheme+"://") {
		return databaseURL{}, errors.New("a database is written " + databaseForms()) // it may be a password in the wrong place
	}
	return databaseURL{}, fmt.Errorf("%q is no kind of database: write %s", scheme, databaseForms())
}

func parseSQLite(s string) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(s, "sqlite:"), "//") // sqlite:///var/lib/… is what many write
	if path == "" {
		return "", errors.New("sqlite: names no file: write sqlite:PATH")
	}
	return path, nil
}

func openSQLite(ctx context.Context, o opening) (adopted.Adopter, error) {
	store, err := sqlite.Open(ctx, sqlite.Options{Path: o.at, Look: o.look, Log: o.log})
	if err != nil {
		return nil, fmt.Errorf("the database sqlite:%s cannot be opened: %w", o.at, err)
	}
	return sqlitediagnose.New(store), nil
}

func openPostgres(ctx context.Context, o opening) (adopted.Adopter, error) {
	store, err := postgres.Open(ctx, postgres.Options{
		URL:            o.at,
		Password:       o.password,
		Schema:         o.Schema,
		MaxConnections: o.MaxConnections,
		Notify:         bool(o.Notify),
		Look:           o.look,
		Log:            o.log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return pgdiagnose.New(store), nil
}

func openSQLServer(ctx context.Context, o opening) (adopted.Adopter, error) {
	store, err := sqlserver.Open(ctx, sqlserver.Options{
		URL:            o.at,
		Password:       o.password,
		Schema:         o.Schema,
		MaxConnections: o.MaxConnections,
		Look:           o.look,
		Log:            o.log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return msdiagnose.New(store), nil
}

func openMySQL(ctx context.Context, o opening) (adopted.Adopter, error) {
	if o.Schema != newDatabase().Schema {
		return nil, usagef("the database's schema: MySQL and MariaDB have none, the tables go into the database that the url names: leave it out")
	}
	store, err := mysql.Open(ctx, mysql.Options{
		URL:            o.at,
		Password:       o.password,
		MaxConnections: o.MaxConnections,
		MaxPayload:     o.payload,
		Look:           o.look,
		Log:            o.log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return mydiagnose.New(store), nil
}

// openDatabase opens one database of the config: to serve it, or to look at it alone.
func openDatabase(ctx context.Context, c *config, name string, look bool, log *slog.Logger) (adopted.Adopter, error) {
	d := c.Databases[name]
	u, err := parseDatabaseURL(d.URL)
	if err != nil {
		return nil, &usageError{err}
	}
	o := opening{databaseConfig: d, at: u.at, payload: int64(protocol.NewLimits(int(c.MaxFrame)).MaxPayload), look: look, log: log}
	if u.file && !look {
		if err := makeDir(filepath.Dir(u.at), 0o700, "the database's directory",
			"name another place with --database sqlite:PATH or QSIDECAR_DATABASE"); err != nil {
			return nil, err
		}
	}
	if o.password, err = d.password(); err != nil {
		return nil, err
	}
	return u.open(ctx, o)
}

// password is what the password_file holds; empty: there is none. In a file there must be
// one: whoever writes it in place empties it first, and some servers let in without.
func (d databaseConfig) password() (string, error) {
	if d.PasswordFile == "" {
		return "", nil
	}
	secret, err := readFile(d.PasswordFile)
	if err != nil {
		return "", usagef("the database's password_file cannot be read: %w", err)
	}
	word := strings.TrimRight(string(secret), "\r\n")
	if word == "" {
		return "", usagef("the database's password_file: %s is empty: write the password into it, or leave password_file out", d.PasswordFile)
	}
	return word, nil
}
