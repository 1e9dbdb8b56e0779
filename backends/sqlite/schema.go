package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/qsidecar/qsidecar/backends/sqlite/migrate"
)

// migrate creates the tables, or updates them to migrate.Latest. Any number of sidecars
// can do so at once, because everything happens under the write lock.
func (s *Store) migrate(ctx context.Context) error {
	if err := s.untilFree(ctx, func() (err error) {
		s.writer, err = s.openWriter()
		return err
	}); err != nil {
		return err
	}
	return s.write(ctx, &s.writer, s.openWriter, func(t *tx) (err error) {
		s.database, err = migrate.Run(migration{t}, s.path, s.later...)
		return err
	})
}

// migration implements migrate.Tx.
type migration struct{ t *tx }

func (m migration) Query(sql string, f func(values []driver.Value) error) error {
	return m.t.query(sql, func(r row) error { return f(r) })
}

func (m migration) Exec(sql string, args ...any) error {
	_, err := m.t.exec(sql, args...)
	return err
}

func (m migration) Script(sql string) error { return m.t.c.once(sql) }

// untilFree repeats f while another program holds a lock that f needs.
func (s *Store) untilFree(ctx context.Context, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		if err == nil || !busy(err) {
			return err
		}
		if f := s.waits.Load(); f != nil {
			(*f)()
		}
		timer := time.NewTimer(pause(try))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(s.withKind(err), context.Cause(ctx))
		}
	}
}
