package testserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// Pooler is a running PgBouncer in transaction mode in front of a server.
type Pooler struct {
	dir   string
	admin *url.URL
	run   *local.Process
}

// StartPgBouncer starts a pooler for p with at most `sessions` connections to each database. Use
// few, so that no client keeps the same one by chance. settings are more lines of its configuration.
func StartPgBouncer(ctx context.Context, p *Postgres, sessions int, settings ...string) (*Pooler, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path = "/usr/sbin/pgbouncer" // Debian's path, which is not in every PATH
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%w: run `scripts/need.sh pgbouncer`", err)
		}
	}
	who, err := local.Unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("qspg-%d-", os.Getpid()))
	if err != nil {
		return nil, err
	}
	b := &Pooler{dir: dir}
	if err := b.start(path, who, p, sessions, settings); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := b.ready(ctx); err != nil {
		return nil, errors.Join(err, b.Stop())
	}
	return b, nil
}

func (b *Pooler) start(path string, who local.Account, p *Postgres, sessions int, settings []string) error {
	server, err := pgx.ParseConfig(p.Admin())
	if err != nil {
		return err
	}
	target := fmt.Sprintf("host=%s port=%d user=%s", server.Host, server.Port, server.User)
	if server.Password != "" {
		target += " password=" + server.Password
	}
	config := fmt.Sprintf(`[databases]
* = %s
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
default_pool_size = %d
max_client_conn = 1000
server_check_delay = 0
server_login_retry = 1
%s
`, target, b.dir, sessions, strings.Join(settings, "\n"))
	file := filepath.Join(b.dir, "ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	if who.Drop {
		if err := os.Chown(b.dir, who.UID, who.GID); err != nil {
			return err
		}
	}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return err
	}
	b.admin = &url.URL{Scheme: "postgres", User: url.User("postgres"), RawQuery: url.Values{"host": {b.dir}, "port": {"6432"}}.Encode()}
	b.run, err = local.Launch(exec.Command(path, file), who, syscall.SIGKILL, filepath.Join(b.dir, "log"))
	return err
}

// URL returns the URL of a server's database through the pooler.
func (b *Pooler) URL(database string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	at := *b.admin
	at.Path = u.Path
	return at.String(), nil
}

func (b *Pooler) ready(ctx context.Context) error {
	at, err := b.URL("postgres:///postgres")
	if err != nil {
		return err
	}
	return b.run.WaitReady(ctx, "PgBouncer", func(ctx context.Context) error {
		c, err := pgx.Connect(ctx, at)
		if err != nil {
			return err
		}
		return c.Close(ctx)
	})
}

// State describes the pooler's clients and sessions, and the end of its log, for a test that failed.
func (b *Pooler) State(ctx context.Context) string {
	at, err := b.URL("postgres:///pgbouncer")
	if err != nil {
		return err.Error()
	}
	config, err := pgx.ParseConfig(at)
	if err != nil {
		return err.Error()
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	var out strings.Builder
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		fmt.Fprintln(&out, err)
	} else {
		for _, list := range []string{"POOLS", "CLIENTS", "SERVERS"} {
			r := c.PgConn().Exec(ctx, "SHOW "+list)
			for r.NextResult() {
				rows := r.ResultReader()
				for rows.NextRow() {
					fmt.Fprintf(&out, "%s %s\n", list, bytes.Join(rows.Values(), []byte(" ")))
				}
			}
			if err := r.Close(); err != nil {
				fmt.Fprintln(&out, list, err)
			}
		}
		if err := c.Close(ctx); err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(b.dir, "log"))
	if err != nil {
		fmt.Fprintln(&out, err)
	}
	out.Write(text[max(0, len(text)-8000):])
	return out.String()
}

// Stop ends the pooler.
func (b *Pooler) Stop() error {
	_, err := b.run.Stop(syscall.SIGKILL)
	return errors.Join(err, os.RemoveAll(b.dir))
}
