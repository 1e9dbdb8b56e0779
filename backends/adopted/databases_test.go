package adopted_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// databases are the databases of a server. A test that passes leaves its database with the sidecar's
// tables to a later test, because their creation costs more than most tests.
type databases struct {
	exec  func(sql string) error
	clean func(name string) error // removes the owner's tables, and the rows of the sidecar's

	mu   sync.Mutex
	made int
	free []string
}

// get returns a free database or a new one, until the test ends.
func (d *databases) get(t *testing.T) string {
	t.Helper()
	name, used := d.next()
	if !used {
		if err := d.exec("CREATE DATABASE " + name); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { // after its connections are closed
		if t.Failed() {
			return
		}
		if err := d.clean(name); err != nil {
			t.Error(err)
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.free = append(d.free, name)
	})
	return name
}

func (d *databases) next() (name string, used bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.free); n > 0 {
		name, d.free = d.free[n-1], d.free[:n-1]
		return name, true
	}
	d.made++
	return fmt.Sprintf("adopted%d_%d", os.Getpid(), d.made), false
}

// onPostgres are the databases of the PostgreSQL server.
var onPostgres = &databases{
	exec: func(sql string) error { return server.Exec(context.Background(), sql) },
	clean: func(name string) (err error) {
		ctx := context.Background()
		c, err := pgx.Connect(ctx, urlOf(name))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close(ctx)) }()
		_, err = c.Exec(ctx, `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
			DO $$
			DECLARE name text;
			BEGIN
				FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'qsidecar') LOOP
					EXECUTE format('DROP SCHEMA %I CASCADE', name);
				END LOOP;
				FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'qsidecar' AND tablename <> 'qsidecar_meta' LOOP
					EXECUTE format('DELETE FROM qsidecar.%I', name);
				END LOOP;
				EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
			END $$;
			CREATE SCHEMA public`)
		return err
	},
}

// urlOf is the URL of a database of the PostgreSQL server.
func urlOf(name string) string {
	u, err := url.Parse(server.Admin())
	if err != nil {
		panic(err)
	}
	u.Path = "/" + name
	return u.String()
}

// onMySQL are the databases of a MySQL or MariaDB server.
func onMySQL(m *testserver.MySQL) *databases {
	return &databases{
		exec: func(sql string) error { return m.Exec(context.Background(), sql) },
		clean: func(name string) (err error) {
			ctx := context.Background()
			db, err := m.Open(name)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, db.Close()) }()
			c, err := db.Conn(ctx)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			tables, err := texts(ctx, c, "SELECT CONCAT(IF(table_name LIKE 'qsidecar\\_%', 'DELETE FROM `', IF(table_type = 'VIEW', 'DROP VIEW `', 'DROP TABLE `')), REPLACE(table_name, '`', '``'), '`') "+
				"FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name <> 'qsidecar_meta'")
			if err != nil {
				return err
			}
			for _, sql := range append([]string{"SET foreign_key_checks = 0"}, tables...) {
				if _, err := c.ExecContext(ctx, sql); err != nil {
					return fmt.Errorf("%s: %w", sql, err)
				}
			}
			return nil
		},
	}
}
