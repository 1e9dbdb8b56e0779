package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Standby starts a streaming standby of a server that this package started. It restarts that
// server, because the standby starts with a copy of its data after a clean shutdown.
func (p *Postgres) Standby(ctx context.Context) (*Postgres, error) {
	if err := p.Halt(); err != nil {
		return nil, err
	}
	dir, err := newServerDir("qspg", Options{})
	if err != nil {
		return nil, err
	}
	s := &Postgres{dir: dir, server: p.server, who: p.who}
	err = errors.Join(prepare(dir, filepath.Join(p.dir, "data"), p.who), p.Restart(ctx))
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "data", "standby.signal"), nil, 0o644),
			appendTo(filepath.Join(dir, "data", "postgresql.auto.conf"), fmt.Sprintf("primary_conninfo = 'host=%s user=postgres'\n", p.dir)))
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	at := *p.admin
	q := at.Query()
	q.Set("host", dir)
	at.RawQuery = q.Encode()
	s.admin = &at
	for _, arg := range p.args {
		switch arg {
		case filepath.Join(p.dir, "data"):
			arg = filepath.Join(dir, "data")
		case "unix_socket_directories=" + p.dir:
			arg = "unix_socket_directories=" + dir
		}
		s.args = append(s.args, arg)
	}
	if err := s.run(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.Ready(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, s.recordRun()
}

func appendTo(file, text string) (err error) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(text)
	return err
}

// Detach ends the replication from the primary.
func (p *Postgres) Detach(ctx context.Context) error {
	if err := p.Exec(ctx, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return testwait.Poll(ctx, func(ctx context.Context) error {
		return p.Exec(ctx, "DO $$BEGIN ASSERT NOT EXISTS (SELECT FROM pg_stat_wal_receiver), 'it still receives'; END$$")
	})
}
