package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres"
	"github.com/qsidecar/qsidecar/backends/sqlite"
)

// databaseURL is where a database is, by engine.
type databaseURL struct {
	engine string // "sqlite" or "postgres"
	path   string // sqlite: the file
	url    string // postgres: as it was given, perhaps with a password
}

const databaseForms = "sqlite:PATH or postgres://USER@HOST/DATABASE"

// parseDatabaseURL reads a database's address. Its errors show no password.
func parseDatabaseURL(s string) (databaseURL, error) {
	scheme, rest, ok := strings.Cut(s, ":")
	switch {
	case ok && scheme == "sqlite":
		path := strings.TrimPrefix(rest, "//") // sqlite:///var/lib/… is what many write
		if path == "" {
			return databaseURL{}, errors.New("sqlite: names no file: write sqlite:PATH")
		}
		return databaseURL{engine: "sqlite", path: path}, nil
	case ok && (scheme == "postgres" || scheme == "postgresql"):
		return databaseURL{engine: "postgres", url: s}, nil
	case ok && (scheme == "mysql" || scheme == "sqlserver"):
		return databaseURL{}, fmt.Errorf("this build has no %s yet: it serves %s", scheme, databaseForms)
	case ok && !strings.ContainsAny(scheme, `/\. `):
		return databaseURL{}, fmt.Errorf("%q is no kind of database: write %s", scheme, databaseForms)
	}
	return databaseURL{}, errors.New("a database is written " + databaseForms)
}

var passwordInURL = regexp.MustCompile(`^[A-Za-z0-9+.-]+://[^/?#]*:[^/?#]*@`)

// databaseFlag is the value of --database: a URL without a password, which every
// user of this host could read in the list of processes, or @FILE.
func databaseFlag(s string) (string, error) {
	if strings.HasPrefix(s, "@") {
		return databaseFromFile(s[1:])
	}
	if hasPassword(s) {
		return "", usagef("--database: a password in the command line is seen by every user of this host: " +
			"put the URL into QSIDECAR_DATABASE, or into a file and give --database @FILE")
	}
	return s, nil
}

func hasPassword(s string) bool {
	if passwordInURL.MatchString(s) {
		return true
	}
	u, err := url.Parse(s)
	if err != nil {
		return false // no URL that any engine takes
	}
	if u.User != nil {
		if _, set := u.User.Password(); set {
			return true
		}
	}
	for key := range u.Query() {
		if k := strings.ToLower(key); k == "password" || k == "pwd" || k == "passwd" {
			return true
		}
	}
	return false
}

func databaseFromFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", usagef("the database's URL cannot be read: %w", err)
	}
	s := strings.TrimSpace(string(b))
	if s == "" || strings.ContainsAny(s, "\r\n") {
		return "", usagef("%s should hold one line, the database's URL", path)
	}
	return s, nil
}

// database is the URL of the only database where no config names any: the flag,
// the environment, the embedded default.
func (a *app) database(flag string) (string, error) {
	if flag != "" {
		return databaseFlag(flag)
	}
	if s := a.getenv("QSIDECAR_DATABASE"); s != "" {
		if strings.HasPrefix(s, "@") {
			return databaseFromFile(s[1:])
		}
		return s, nil
	}
	return a.defaultDatabase()
}

// openDatabase opens one database and makes its tables.
func openDatabase(ctx context.Context, d databaseConfig, log *slog.Logger) (backends.Backend, error) {
	u, err := parseDatabaseURL(d.URL)
	if err != nil {
		return nil, &usageError{err}
	}
	if u.engine == "postgres" {
		return openPostgres(ctx, u, d, log)
	}
	if err := makeDir(filepath.Dir(u.path), 0o700, "the database's directory",
		"name another place with --database sqlite:PATH or QSIDECAR_DATABASE"); err != nil {
		return nil, err
	}
	store, err := sqlite.Open(ctx, sqlite.Options{Path: u.path, Log: log})
	if err != nil {
		return nil, fmt.Errorf("the database sqlite:%s cannot be opened: %w", u.path, err)
	}
	return store, nil
}

func openPostgres(ctx context.Context, u databaseURL, d databaseConfig, log *slog.Logger) (backends.Backend, error) {
	o := postgres.Options{
		URL:            u.url,
		Schema:         d.Schema,
		MaxConnections: d.MaxConnections,
		Notify:         bool(d.Notify),
		Log:            log,
	}
	if d.PasswordFile != "" {
		secret, err := os.ReadFile(d.PasswordFile)
		if err != nil {
			return nil, usagef("the database's password_file cannot be read: %w", err)
		}
		o.Password = strings.TrimRight(string(secret), "\r\n")
	}
	store, err := postgres.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	return store, nil
}

// openAll opens every database of a config. Where one fails, the others are closed again.
func openAll(ctx context.Context, c *config, log *slog.Logger) (map[string]backends.Backend, error) {
	open := make(map[string]backends.Backend)
	var errs error
	for name, d := range c.Databases {
		b, err := openDatabase(ctx, d, log)
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		open[name] = b
	}
	if errs != nil {
		return nil, errors.Join(errs, closeAll(open))
	}
	return open, nil
}

func closeAll(open map[string]backends.Backend) (err error) {
	for name, b := range open {
		if e := b.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("closing the database %s: %w", name, e))
		}
	}
	return err
}
