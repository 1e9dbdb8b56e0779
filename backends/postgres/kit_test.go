package postgres

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// Make the Store count queues by pages, however few jobs a test has.
func init() { core.PageRows = 7 }

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// template is the name of a database of this process with the tables of this version.
var template = fmt.Sprintf("t%d_template", os.Getpid())

// makeTemplate creates the template database on a server.
func makeTemplate(ctx context.Context, p *testserver.Postgres) error {
	if err := p.Exec(ctx, "CREATE DATABASE "+template+" TEMPLATE template0"); err != nil {
		return err
	}
	at, err := url.Parse(p.Admin())
	if err != nil {
		return err
	}
	at.Path = "/" + template
	s, err := Open(ctx, Options{URL: at.String()})
	if err != nil {
		return err
	}
	return s.Close()
}

// filled returns a database that has the tables of this version. It is a copy, which takes a
// fraction of the time that Open needs to create them.
func filled(t testing.TB, p *testserver.Postgres) (url string) {
	t.Helper()
	return p.Copy(t, template)
}

// exec runs SQL on its own connection, like psql.
func exec(t testing.TB, url, sql string) error {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	_, err = c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

func must(t testing.TB, url, sql string) {
	t.Helper()
	if err := exec(t, url, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
