package engines

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
)

// Engine is a kind of database, and all that the process knows of it.
type Engine struct {
	Name    string
	schemes []string // what its URLs begin with
	form    string   // how its URLs are written, for messages
	File    bool     // a file of this host: it has no password, and needs its folder
	// NoSchemas: the tables go into the database that the URL names.
	NoSchemas bool

	// parse checks a URL and returns it as open wants it; nil: taken as it is. An
	// error of it shows no password.
	parse func(url string) (string, error)
	// open opens the database; with look it makes and changes nothing in it.
	open func(ctx context.Context, o Options) (adopted.Adopter, error)
	// migrations is the SQL that makes the tables out of those of the version `from`
	// (0: there are none), and gives that role what it needs to serve.
	migrations func(url, schema, role string, from int) string
}

// Options say how a database is opened.
type Options struct {
	URL            string // as ParseURL gave it
	Password       string // in place of the URL's; empty: none
	Schema         string
	MaxConnections int
	MaxPayload     int64 // how many bytes a job's may have
	Notify         bool
	ReadOnly       bool // for Examine alone: no tables are made
	Log            *slog.Logger
}

// engines are the kinds of databases that this program serves.
var engines = []Engine{
	{
		Name: "sqlite", schemes: []string{"sqlite"}, form: "sqlite:PATH", File: true,
		parse: parseSQLite, open: openSQLite,
		migrations: func(_, _, _ string, _ int) string { return sqlitemigrate.SQL() },
	},
	{
		Name: "postgres", schemes: []string{"postgres", "postgresql"}, form: "postgres://USER@HOST/DATABASE",
		open:       openPostgres,
		migrations: func(url, schema, role string, from int) string { return pgmigrate.SQL(schema, role, from) },
	},
	{
		Name: "mysql", NoSchemas: true, schemes: []string{"mysql"}, form: "mysql://USER@HOST/DATABASE",
		parse: func(url string) (string, error) { return url, mysql.CheckURL(url) },
		open:  openMySQL,
		migrations: func(url, schema, role string, from int) string {
			return mymigrate.SQL(mysql.DatabaseOf(url), role, from)
		},
	},
	{
		Name: "sqlserver", schemes: []string{"sqlserver"}, form: "sqlserver://USER@HOST?database=NAME",
		parse: func(url string) (string, error) { return url, sqlserver.CheckURL(url) },
		open:  openSQLServer,
		migrations: func(url, schema, role string, from int) string {
			return msmigrate.SQL(schema, role, from)
		},
	},
}

// URL is where a database is, and its engine.
type URL struct {
	*Engine
	At string // as Open wants it; may hold a password
}

// Open opens the database.
func (u URL) Open(ctx context.Context, o Options) (adopted.Adopter, error) {
	o.URL = u.At
	return u.open(ctx, o)
}

// Migrations is the SQL that makes the tables in the schema out of those of the version `from`
// (0: there are none), and gives that role what it needs to serve.
func (u URL) Migrations(schema, role string, from int) string {
	return u.migrations(u.At, schema, role, from)
}

func databaseForms() string {
	var forms []string
	for _, e := range engines {
		forms = append(forms, e.form)
	}
	last := len(forms) - 1
	return strings.Join(forms[:last], ", ") + " or " + forms[last]
}

// ParseURL reads a database's address. Its errors show no password.
func ParseURL(s string) (URL, error) {
	scheme, _, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(scheme, `/\. `) {
		return URL{}, errors.New("a database is written " + databaseForms())
	}
	for i, e := range engines {
		if !slices.Contains(e.schemes, scheme) {
			continue
		}
		if !e.File {
			if err := CheckAddress(s); err != nil {
				return URL{}, err
			}
		}
		u := URL{Engine: &engines[i], At: s}
		if e.parse == nil {
			return u, nil
		}
		var err error
		u.At, err = e.parse(s)
		return u, err
	}
	if !strings.HasPrefix(s, scheme+"://") {
		return URL{}, errors.New("a database is written " + databaseForms()) // it may be a password in the wrong place
	}
	return URL{}, fmt.Errorf("%q is no kind of database: write %s", scheme, databaseForms())
}

func parseSQLite(s string) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(s, "sqlite:"), "//") // sqlite:///var/lib/… is what many write
	if path == "" {
		return "", errors.New("sqlite: names no file: write sqlite:PATH")
	}
	return path, nil
}

func openSQLite(ctx context.Context, o Options) (adopted.Adopter, error) {
	store, err := sqlite.Open(ctx, sqlite.Options{Path: o.URL, Look: o.ReadOnly, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("the database sqlite:%s cannot be opened: %w", o.URL, err)
	}
	return sqlitediagnose.New(store), nil
}

func openPostgres(ctx context.Context, o Options) (adopted.Adopter, error) {
	store, err := postgres.Open(ctx, postgres.Options{
		URL:            o.URL,
		Password:       o.Password,
		Schema:         o.Schema,
		MaxConnections: o.MaxConnections,
		Notify:         o.Notify,
		Look:           o.ReadOnly,
		Log:            o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return pgdiagnose.New(store), nil
}

func openSQLServer(ctx context.Context, o Options) (adopted.Adopter, error) {
	store, err := sqlserver.Open(ctx, sqlserver.Options{
		URL:            o.URL,
		Password:       o.Password,
		Schema:         o.Schema,
		MaxConnections: o.MaxConnections,
		Look:           o.ReadOnly,
		Log:            o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return msdiagnose.New(store), nil
}

func openMySQL(ctx context.Context, o Options) (adopted.Adopter, error) {
	store, err := mysql.Open(ctx, mysql.Options{
		URL:            o.URL,
		Password:       o.Password,
		MaxConnections: o.MaxConnections,
		MaxPayload:     o.MaxPayload,
		Look:           o.ReadOnly,
		Log:            o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return mydiagnose.New(store), nil
}
