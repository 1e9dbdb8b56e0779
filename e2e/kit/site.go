package kit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Site is a database with any number of sidecars.
type Site struct {
	T   testing.TB
	Dir string // a short path, because socket paths are limited; any user can enter it

	URL             string             // the database
	SidecarTimeout  time.Duration      // written into every config
	readers         map[string]*sql.DB // by URL
	restartGrace    time.Duration      // 0: the default
	DatabaseOptions string             // more options of the database in the config, each starting with a comma
	Extra           string             // more top-level lines of config
	Queues          string             // the config's queues; if empty, queues are created at their first use
}

// NewSite returns a site with a new SQLite file.
func NewSite(t testing.TB) *Site {
	t.Helper()
	dir, err := os.MkdirTemp(local.TempDir(), "qs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return &Site{
		readers: map[string]*sql.DB{},
		T:       t, Dir: dir, URL: "sqlite:" + filepath.Join(dir, "q.db"),
		SidecarTimeout: 30 * time.Second, // the program's default, longer than any machine stalls
		Queues:         "  \"*\": {}\n",
	}
}

// File returns the path of the site's SQLite database.
func (s *Site) File() string { return strings.TrimPrefix(s.URL, "sqlite:") }

// Sidecar describes a sidecar. Start starts it.
func (s *Site) Sidecar(name string) *Sidecar {
	s.T.Helper()
	sc := &Sidecar{
		T: s.T, Name: name,
		Socket:     filepath.Join(s.Dir, name+".sock"),
		ConfigFile: filepath.Join(s.Dir, name+".yaml"),
		LogFile:    filepath.Join(s.Dir, name+".log"), SidecarTimeout: s.SidecarTimeout,
	}
	grace := ""
	if s.restartGrace > 0 {
		grace = fmt.Sprintf(", restart_grace: %s", Duration(s.restartGrace))
	}
	text := fmt.Sprintf("listen:\n  - socket: %s\ndatabases:\n  main: {url: %q, sidecar_timeout: %s%s%s}\n%squeues:\n%s",
		sc.Socket, s.URL, Duration(s.SidecarTimeout), grace, s.DatabaseOptions, s.Extra, s.Queues)
	if err := os.WriteFile(sc.ConfigFile, []byte(text), 0o644); err != nil {
		s.T.Fatal(err)
	}
	return sc
}

// Duration formats d as the config does.
func Duration(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// Start returns a running sidecar.
func (s *Site) Start(name string) *Sidecar {
	s.T.Helper()
	sc := s.Sidecar(name)
	sc.Start()
	return sc
}

// Script writes an executable shell script into the site's directory.
func (s *Site) Script(name, text string) {
	s.T.Helper()
	path := filepath.Join(s.Dir, name)
	if err := local.WriteProgram(path, []byte("#!/bin/sh\n"+text)); err != nil {
		s.T.Fatal(err)
	}
}

// Read returns a file of the site's directory, or an empty string.
func (s *Site) Read(name string) string {
	s.T.Helper()
	b, err := os.ReadFile(filepath.Join(s.Dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.T.Fatal(err)
	}
	return string(b)
}

// WaitEnded waits until the processes whose ids are in the site's file have ended.
func (s *Site) WaitEnded(file string, n int) {
	s.T.Helper()
	pids := strings.Fields(s.Read(file))
	if len(pids) != n {
		s.T.Fatalf("%s names the processes %v, want %d", file, pids, n)
	}
	for _, pid := range pids {
		testwait.Until(s.T, "process "+pid+" has ended", func() bool { return !IsRunning(s.T, pid) })
	}
}

// SQLite opens the site's file beside the sidecars, as another program would.
func (s *Site) SQLite(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+s.File()+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Exec runs a statement in the site's file.
func (s *Site) Exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	ctx := context.Background()
	if _, err := s.SQLite(t).ExecContext(ctx, statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Rows returns the first column of a query in the site's file.
func (s *Site) Rows(query string, args ...any) []string {
	s.T.Helper()
	return databases.OwnersDB{T: s.T, DB: s.reader()}.Texts(query, args...)
}

// JobsInFile returns the ids of all rows of the job table.
func (s *Site) JobsInFile(testing.TB) []string {
	s.T.Helper()
	return s.Rows("SELECT CAST(id AS TEXT) FROM qsidecar_jobs")
}

// reader returns a pool for Rows, opened once.
func (s *Site) reader() *sql.DB {
	s.T.Helper()
	if s.readers[s.URL] == nil {
		db, err := sql.Open("sqlite", "file:"+s.File()+"?mode=ro&_pragma=busy_timeout(60000)")
		if err != nil {
			s.T.Fatal(err)
		}
		s.T.Cleanup(func() { db.Close() })
		s.readers[s.URL] = db
	}
	return s.readers[s.URL]
}

// SkipLockedKinds are the kinds of servers that support SKIP LOCKED.
var SkipLockedKinds = []testserver.Kind{testserver.MySQL97, testserver.MariaDB1011}

// OnMySQL runs f on a site with a new server of each kind. If MySQL is unavailable, testserver
// reports it, and again at the end of the run.
func OnMySQL(t *testing.T, kinds []testserver.Kind, f func(t *testing.T, s *Site, p *databases.MySQL)) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			s, p, err := NewMySQLSite(t, kind)
			if errors.Is(err, testserver.ErrUnavailable) {
				Figure(t, "NOT TESTED on MySQL, which could not be had")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f(t, s, p)
		})
	}
}

// NewMySQLSite returns a site with a new server of that kind.
func NewMySQLSite(t *testing.T, kind testserver.Kind) (*Site, *databases.MySQL, error) {
	t.Helper()
	databases.OwnMySQL(t)
	p, err := databases.StartMySQL(t, kind, testserver.Options{Durable: true})
	if err != nil {
		return nil, nil, err
	}
	s := NewSite(t)
	s.URL = p.URL(p.Name)
	return s, p, nil
}

// NewPostgresSite returns a site with a new server of the newest version.
func NewPostgresSite(t *testing.T) (*Site, *databases.Postgres) {
	t.Helper()
	return NewPostgresSiteOf(t, testserver.NewestPostgres)
}

// NewPostgresSiteOf returns a site with a new server of a major version.
func NewPostgresSiteOf(t *testing.T, version string) (*Site, *databases.Postgres) {
	t.Helper()
	p := databases.StartPostgres(t, version)
	s := NewSite(t)
	s.URL = p.URL
	return s, p
}
