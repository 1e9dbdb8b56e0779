package testserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// postgresBin returns the directory of PostgreSQL's programs in the unpacked packages.
func postgresBin(home string) string { return filepath.Join(home, "usr/lib/postgresql/15/bin") }

// installPatroni unpacks Patroni, etcd and PostgreSQL, and returns their directory. Its `python`
// runs Patroni. PostgreSQL's programs there are scripts that start the real ones with their own libraries.
func installPatroni(ctx context.Context, who account) (string, error) {
	cache, err := cacheDir(who)
	if err != nil {
		return "", err
	}
	home := patroniHome(cache)
	if err := debian(ctx, cache, patroniSuite, home, "patroni", "python3-etcd", "etcd-server", "postgresql-15"); err != nil {
		return "", err
	}
	return home, locked(home+".lock", func() error {
		python := filepath.Join(home, "python")
		if exists(python) {
			return nil
		}
		loader, libraries, err := loaderOf(home)
		if err != nil {
			return err
		}
		for _, name := range []string{"postgres", "initdb", "pg_ctl", "pg_controldata", "pg_basebackup", "pg_rewind", "pg_isready"} {
			at := filepath.Join(postgresBin(home), name)
			if !exists(at + ".real") {
				if err := os.Rename(at, at+".real"); err != nil {
					return err
				}
			}
			script := fmt.Sprintf("#!/bin/sh\nexec '%s' --library-path '%s' --argv0 '%s' '%s.real' \"$@\"\n", loader, libraries, at, at)
			if err := WriteProgram(at, []byte(script)); err != nil {
				return err
			}
		}
		script := fmt.Sprintf("#!/bin/sh\nPYTHONHOME='%s/usr' exec '%s' --library-path '%s' '%s/usr/bin/python3' -B \"$@\"\n", home, loader, libraries, home)
		if err := WriteProgram(python+".new", []byte(script)); err != nil {
			return err
		}
		if err := run(ctx, python+".new", "-c", "import patroni.dcs.etcd3, psycopg2"); err != nil {
			return err
		}
		return os.Rename(python+".new", python)
	})
}
