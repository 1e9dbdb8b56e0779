package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
)

// databaseFlag is the value of --database: a URL without a password, which every
// user of this host could read in the list of processes, or @FILE.
func databaseFlag(s string, read reading) (string, error) {
	if strings.HasPrefix(s, "@") {
		return databaseFromFile(s[1:], read)
	}
	if passwordInURL.MatchString(s) || hasPassword(s) && checkAddress(s) == nil { // what is wrong with others is told by whoever reads it
		return "", usagef("--database: a password in the command line is seen by every user of this host: " +
			"put the URL into QSIDECAR_DATABASE, or into a file and give --database @FILE")
	}
	return s, nil
}

func databaseFromFile(path string, read reading) (string, error) {
	b, err := read(path)
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
func (a *app) database(flag string, read reading) (string, error) {
	if flag != "" {
		return databaseFlag(flag, read)
	}
	if s := a.getenv("QSIDECAR_DATABASE"); s != "" {
		if strings.HasPrefix(s, "@") {
			return databaseFromFile(s[1:], read)
		}
		return s, nil
	}
	return a.defaultDatabase()
}

// openAll opens every database of a config. Where one fails, the others are closed again.
func openAll(ctx context.Context, c *config, log *slog.Logger) (map[string]backends.Backend, error) {
	open := make(map[string]backends.Backend)
	var errs error
	for name := range c.Databases {
		b, err := openAdopted(ctx, c, name, log)
		if err != nil {
			errs = errors.Join(errs, c.inDatabase(name, err))
			continue
		}
		open[name] = b
	}
	if errs != nil {
		return nil, errors.Join(errs, closeAll(open))
	}
	return open, nil
}

// inDatabase says of which database an error is, where there are several.
func (c *config) inDatabase(name string, err error) error {
	if len(c.Databases) == 1 {
		return err
	}
	return fmt.Errorf("databases.%s: %w", name, err)
}

// opener is openAdopted, or what a test has in its place.
type opener func(ctx context.Context, c *config, name string, log *slog.Logger) (backends.Backend, error)

// openAdopted opens one database of the config with the adopted tables that the config has in it.
func openAdopted(ctx context.Context, c *config, name string, log *slog.Logger) (backends.Backend, error) {
	b, err := openDatabase(ctx, c, name, false, log)
	if err != nil {
		return nil, err
	}
	with, err := c.adopt(ctx, name, b, log)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return with, nil
}

func closeAll(open map[string]backends.Backend) (err error) {
	for name, b := range open {
		if e := b.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("closing the database %s: %w", name, e))
		}
	}
	return err
}
