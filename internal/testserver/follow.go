package testserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Follow makes a server that has ended a standby of a running one. It starts it with a new copy of that one's data, and waits until
// it streams.
func (p *Postgres) Follow(ctx context.Context, primary *Postgres) (err error) {
	data := filepath.Join(p.dir, "data")
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, primary.Admin())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	begin, end := "pg_backup_start('follow', true)", "pg_backup_stop(false)"
	if major, _, _ := strings.Cut(p.Version, "."); major < "15" {
		begin, end = "pg_start_backup('follow', true, false)", "pg_stop_backup(false)"
	}
	if _, err := c.Exec(ctx, "SELECT "+begin); err != nil {
		return err
	}
	if err := copyRunning(data, filepath.Join(primary.dir, "data")); err != nil {
		return err
	}
	var label string
	if err := c.QueryRow(ctx, "SELECT labelfile FROM "+end).Scan(&label); err != nil {
		return err
	}
	from := primary.admin.Query()
	err = errors.Join(os.WriteFile(filepath.Join(data, "backup_label"), []byte(label), 0o600),
		os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600),
		appendTo(filepath.Join(data, "postgresql.auto.conf"), fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=postgres'\n", from.Get("host"), cmp.Or(from.Get("port"), "5432"))),
		own(p.dir, p.who))
	if err != nil {
		return err
	}
	if err := p.Restart(ctx); err != nil {
		return err
	}
	return p.CaughtUp(ctx, primary)
}

// copyRunning copies the data directory of a running server, as a backup does. The server can remove files at the same time.
func copyRunning(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case rel == "postmaster.pid", rel == "standby.signal", strings.HasPrefix(rel, "pg_wal"), strings.HasPrefix(rel, "pg_dynshmem"):
			return nil
		}
		return copyFile(filepath.Join(to, rel), path)
	})
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// CaughtUp waits until a standby has received and replayed all that its primary has committed now. What it replayed can be ahead by
// the empty rest of a segment. If the primary shuts down then, it can remove that segment, and the standby gets nothing after it.
func (p *Postgres) CaughtUp(ctx context.Context, primary *Postgres) error {
	var at string
	if err := primary.ask(ctx, &at, "SELECT pg_current_wal_flush_lsn()::text"); err != nil {
		return err
	}
	return testwait.Poll(ctx, func(ctx context.Context) error {
		var there bool
		if err := p.ask(ctx, &there, "SELECT $1::text::pg_lsn <= ALL (ARRAY[pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()])", at); err != nil || !there {
			return fmt.Errorf("the standby has not replayed %s: %w", at, err)
		}
		return nil
	})
}

// Promote makes a standby a primary, and waits until it accepts writes.
func (p *Postgres) Promote(ctx context.Context) error {
	var ok bool
	if err := p.ask(ctx, &ok, "SELECT pg_promote(true, 3600)"); err != nil || !ok {
		return fmt.Errorf("the standby was not promoted: %w", err)
	}
	return nil
}

// SyncStandby makes commits of a primary wait for its standby, or not. It waits until this takes effect.
func (p *Postgres) SyncStandby(ctx context.Context, waits bool) error {
	names := ""
	if waits {
		names = "*"
	}
	if err := p.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	if err := testwait.Poll(ctx, func(ctx context.Context) error {
		var now string
		if err := p.ask(ctx, &now, "SELECT current_setting('synchronous_standby_names')"); err != nil || now != names {
			return fmt.Errorf("synchronous_standby_names is %q: %w", now, err)
		}
		return nil
	}); err != nil {
		return err
	}
	return p.Exec(ctx, "CHECKPOINT") // commits wait once the checkpointer has read the setting, which it does first
}

// ask runs a query with one value.
func (p *Postgres) ask(ctx context.Context, to any, sql string, args ...any) error {
	c, err := pgx.Connect(ctx, p.Admin())
	if err != nil {
		return err
	}
	return errors.Join(c.QueryRow(ctx, sql, args...).Scan(to), c.Close(context.WithoutCancel(ctx)))
}

// Freeze stops all processes of the server, as a host that hangs.
func (p *Postgres) Freeze() error { return p.signalAll(syscall.SIGSTOP) }

// Thaw continues the server's processes after Freeze.
func (p *Postgres) Thaw() error { return p.signalAll(syscall.SIGCONT) }

// Kill9 kills all processes of the server with signal 9, also those that are frozen, and keeps its data. It waits for their
// end: the next server doesn't start while one of them has the shared memory.
func (p *Postgres) Kill9() error {
	if err := p.Freeze(); err != nil {
		return err
	}
	all, err := children(p.PID())
	if err != nil {
		return err
	}
	if err := p.signalAll(syscall.SIGKILL); err != nil {
		return err
	}
	_, err = p.proc.stop(syscall.SIGKILL)
	return errors.Join(err, waitEnded(all))
}

// waitEnded waits until processes that are killed have ended, which frees their memory.
func waitEnded(all []int) error {
	return testwait.Poll(context.Background(), func(context.Context) error {
		for _, pid := range all {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err == nil && !bytes.Contains(stat, []byte(") Z ")) && !bytes.Contains(stat, []byte(") X ")) {
				return fmt.Errorf("process %d was killed and has not ended", pid)
			}
		}
		return nil
	})
}

func (p *Postgres) signalAll(s syscall.Signal) error { return signalTree(p.PID(), s) }

// signalTree sends a signal to a process and its children, if they still run. It stops the process first, so that it starts no other child.
func signalTree(parent int, s syscall.Signal) error {
	if s == syscall.SIGSTOP {
		if err := syscall.Kill(parent, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	all, err := children(parent)
	if err != nil {
		return err
	}
	for _, pid := range append(all, parent) {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// children returns the ids of a process's children.
func children(parent int) (all []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		var pid, ppid int
		var state string
		if _, err := fmt.Sscanf(string(stat), "%d", &pid); err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+1:]), "%s %d", &state, &ppid); err != nil {
			return nil, err
		}
		if ppid == parent {
			all = append(all, pid)
		}
	}
	return all, nil
}
