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
	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// Engine is a kind of database.
type Engine struct {
	Name    string
	schemes []string // of its URLs
	aliases []string // schemes of other programs' URLs, which get a hint
	form    string   // of its URLs, for messages
	Latest  int      // the version of the tables that this program creates
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
		Name: "sqlite", schemes: []string{"sqlite"}, aliases: []string{"sqlite3"}, form: "sqlite:PATH", Latest: sqlitemigrate.Latest, File: true,
		parse: parseSQLite, open: openSQLite,
		migrations: func(_, _, _ string, from int) string { return sqlitemigrate.SQL(from) },
	},
	{
		Name: "postgres", Replicas: true, schemes: []string{"postgres", "postgresql"}, aliases: []string{"pg", "pgsql", "psql", "postgis"}, form: "postgres://USER@HOST/DATABASE", Latest: pgmigrate.Latest,
		parse:      func(url string) (string, error) { return url, postgres.CheckURL(url) },
		open:       openPostgres,
		migrations: func(url, schema, role string, from int) string { return pgmigrate.SQL(schema, role, from) },
	},
	{
		Name: "mysql", NoSchemas: true, Replicas: true, schemes: []string{"mysql"}, aliases: []string{"mariadb"}, form: "mysql://USER@HOST/DATABASE", Latest: mymigrate.Latest,
		parse: func(url string) (string, error) { return url, mysql.CheckURL(url) },
		open:  openMySQL,
		migrations: func(url, schema, role string, from int) string {
			return mymigrate.SQL(mysql.DatabaseOf(url), role, from)
		},
	},
	{
		Name: "sqlserver", schemes: []string{"sqlserver"}, aliases: []string{"mssql"}, form: "sqlserver://USER@HOST?database=NAME", Latest: msmigrate.Latest,
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
	switch {
	case s != strings.TrimSpace(s):
		return URL{}, errors.New("there is a space before or after the address: remove it")
	case strings.HasPrefix(s, `"`) || strings.HasPrefix(s, "'"): // an --env-file of Docker keeps them
		return URL{}, errors.New("the quotes are part of the value: remove them")
	case strings.HasPrefix(s, "$"):
		return URL{}, errors.New("a variable isn't replaced in this form: write ${NAME} in a config")
	}
	if inner, java := strings.CutPrefix(s, "jdbc:"); java {
		kind, _, _ := strings.Cut(inner, ":")
		if form := nearForm(kind); form != "" {
			return URL{}, fmt.Errorf("leave jdbc: out: write %s", form)
		}
	}
	scheme, _, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(scheme, `/\. `) {
		return URL{}, errors.New("a database is written " + databaseForms())
	}
	for i, e := range engines {
		if !slices.Contains(e.schemes, scheme) {
			continue
		}
		if !e.File {
			if !strings.HasPrefix(s, scheme+"://") {
				return URL{}, fmt.Errorf("%s: is not followed by //: write %s", scheme, e.form)
			}
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
	if scheme == "sqlite3" {
		return URL{}, fmt.Errorf("%q is not a kind of database: did you mean %s?", scheme, nearForm(scheme))
	}
	if !strings.HasPrefix(s, scheme+"://") {
		return URL{}, errors.New("a database is written " + databaseForms()) // it can be a misplaced password
	}
	if near := nearForm(scheme); near != "" {
		return URL{}, fmt.Errorf("%q is not a kind of database: did you mean %s?", scheme, near)
	}
	return URL{}, fmt.Errorf("%q is not a kind of database: write %s", scheme, databaseForms())
}

// nearForm returns the form of the URLs that another program's scheme probably stands for, such as postgresql+psycopg2.
func nearForm(scheme string) string {
	kind, _, _ := strings.Cut(scheme, "+")
	forms := make(map[string]string)
	var names []string
	for _, e := range engines {
		for _, name := range slices.Concat(e.schemes, e.aliases) {
			forms[name] = e.form
			names = append(names, name)
		}
	}
	if form, exact := forms[kind]; exact {
		return form
	}
	return forms[textfmt.Nearest(kind, names)]
}

func parseSQLite(s string) (string, error) {
	path, slashes := strings.CutPrefix(strings.TrimPrefix(s, "sqlite:"), "//") // sqlite:///var/lib/… is a common form
	switch {
	case path == "":
		return "", errors.New("sqlite: names no file: write sqlite:PATH")
	case strings.HasPrefix(path, "file:"):
		return "", errors.New("sqlite: leave file: out: write sqlite:PATH")
	case strings.HasPrefix(path, ":memory:"):
		return "", errors.New("sqlite: a database in memory would be lost with the process: name a file, sqlite:PATH")
	case strings.HasPrefix(path, "~"):
		return "", errors.New("sqlite: ~ isn't replaced here: write the whole path")
	case strings.Contains(path, "?"):
		return "", errors.New("sqlite: the path has a ?: a path has no parameters, because the sidecar sets SQLite's options itself")
	case slashes && !strings.HasPrefix(path, "/"):
		return "", fmt.Errorf("%q has two slashes: write sqlite:/%s, or sqlite:%s for a path below the working folder", s, path, path)
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
