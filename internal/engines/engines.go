package engines

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
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

// Engine is a kind of database.
type Engine struct {
	Name    string
	schemes []string // of its URLs
	form    string   // of its URLs, for messages
	File    bool     // a file of this host, which has no password and needs its directory
	// NoSchemas: the tables are in the database that the URL names.
	NoSchemas bool
	// Replicas: statistics can be read from a replica.
	Replicas bool

	// parse checks a URL and returns it in the form for open; nil: the URL is used as it is.
	// Its errors contain no password.
	parse func(url string) (string, error)
	// open opens the database. If o.ReadOnly is set it changes nothing.
	open func(ctx context.Context, o Options) (backends.Engine, error)
	// migrations returns the SQL of URL.Migrations.
	migrations func(url, schema, role string, from int) string
}

// Options configure how a database is opened.
type Options struct {
	URL            string // set by URL.Open
	Password       string // replaces the URL's; empty: none
	Schema         string
	MaxConnections int
	MaxPayload     int64 // limit of a job's payload in bytes
	Notify         bool
	ReadOnly       bool // for Examine and Stats: creates no tables, and a replica will do
	Log            *slog.Logger
}

// engines lists the engines of this program.
var engines = []Engine{
	{
		Name: "sqlite", schemes: []string{"sqlite"}, form: "sqlite:PATH", File: true,
		parse: parseSQLite, open: openSQLite,
		migrations: func(_, _, _ string, from int) string { return sqlitemigrate.SQL(from) },
	},
	{
		Name: "postgres", Replicas: true, schemes: []string{"postgres", "postgresql"}, form: "postgres://USER@HOST/DATABASE",
		open:       openPostgres,
		migrations: func(url, schema, role string, from int) string { return pgmigrate.SQL(schema, role, from) },
	},
	{
		Name: "mysql", NoSchemas: true, Replicas: true, schemes: []string{"mysql"}, form: "mysql://USER@HOST/DATABASE",
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

// URL is the address of a database with its engine.
type URL struct {
	*Engine
	At string // in the form for open; can contain a password
}

// Open opens the database. It ignores o.URL.
func (u URL) Open(ctx context.Context, o Options) (backends.Engine, error) {
	o.URL = u.At
	return u.open(ctx, o)
}

// Migrations returns the SQL that updates the tables in the schema from that version (0: no
// tables) and grants the role the rights of serve.
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

// ParseURL reads the URL of a database. Its errors contain no password.
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
		return URL{}, errors.New("a database is written " + databaseForms()) // it can be a misplaced password
	}
	return URL{}, fmt.Errorf("%q is not a kind of database: write %s", scheme, databaseForms())
}

func parseSQLite(s string) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(s, "sqlite:"), "//") // sqlite:///var/lib/… is a common form
	if path == "" {
		return "", errors.New("sqlite: names no file: write sqlite:PATH")
	}
	return path, nil
}

func openSQLite(ctx context.Context, o Options) (backends.Engine, error) {
	store, err := sqlite.Open(ctx, sqlite.Options{Path: o.URL, ReadOnly: o.ReadOnly, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("the database sqlite:%s cannot be opened: %w", o.URL, err)
	}
	return sqlitediagnose.New(store), nil
}

func openPostgres(ctx context.Context, o Options) (backends.Engine, error) {
	store, err := postgres.Open(ctx, postgres.Options{
		URL:            o.URL,
		Password:       o.Password,
		Schema:         o.Schema,
		MaxConnections: o.MaxConnections,
		Notify:         o.Notify,
		ReadOnly:       o.ReadOnly,
		Log:            o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return pgdiagnose.New(store), nil
}

func openSQLServer(ctx context.Context, o Options) (backends.Engine, error) {
	store, err := sqlserver.Open(ctx, sqlserver.Options{
		URL:            o.URL,
		Password:       o.Password,
		Schema:         o.Schema,
		MaxConnections: o.MaxConnections,
		ReadOnly:       o.ReadOnly,
		Log:            o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return msdiagnose.New(store), nil
}

func openMySQL(ctx context.Context, o Options) (backends.Engine, error) {
	store, err := mysql.Open(ctx, mysql.Options{
		URL:            o.URL,
		Password:       o.Password,
		MaxConnections: o.MaxConnections,
		MaxPayload:     o.MaxPayload,
		ReadOnly:       o.ReadOnly,
		Log:            o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return mydiagnose.New(store), nil
}
