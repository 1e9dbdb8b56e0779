package sqlite

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"time"
)

//go:embed schema.sql
var schema string

//go:embed schema_2.sql
var schema2 string

//go:embed schema_3.sql
var schema3 string

// Schema is the SQL that makes the tables, for people who run it by hand. The
// row in qsidecar_meta, which Open adds, is not in it.
func Schema() string { return schema + "\n" + schema2 + "\n" + schema3 }

const (
	version = 3 // of the schema this program makes
	program = 1 // this program's generation; a schema may ask for a later one
)

// migrate makes or completes the tables. Any number of sidecars may do so at
// once: all of it happens under the write lock.
func (s *Store) migrate(ctx context.Context) error {
	if err := s.untilFree(ctx, func() (err error) {
		s.writer, err = s.openWriter()
		return err
	}); err != nil {
		return err
	}
	return s.write(ctx, &s.writer, s.openWriter, func(t *tx) error {
		var tables, jobs int64
		if err := t.query(`SELECT count(*) FILTER (WHERE name = 'qsidecar_meta'), count(*) FILTER (WHERE name = 'qsidecar_jobs') FROM sqlite_master WHERE type = 'table'`, func(r row) error {
			tables, jobs = r.int(0), r.int(1)
			return nil
		}); err != nil {
			return err
		}
		if tables == 0 {
			if jobs != 0 {
				return fmt.Errorf("%s has a table qsidecar_jobs but no qsidecar_meta: its tables were not made by qsidecar, or only in part", s.path)
			}
			if err := t.c.once(schema); err != nil {
				return fmt.Errorf("making the tables in %s: %w", s.path, err)
			}
		}
		if err := s.meta(t); err != nil {
			return err
		}
		return s.upgrade(t)
	})
}

// upgrade completes tables of an earlier version. A program of that version goes on
// with them.
func (s *Store) upgrade(t *tx) error {
	older := false
	if err := t.query(`SELECT 1 WHERE (SELECT count(*) FROM sqlite_master WHERE name IN ('qsidecar_leases_due', 'qsidecar_usable')) < 2`, func(row) error {
		older = true
		return nil
	}); err != nil || !older {
		return err
	}
	if err := t.c.once(schema2 + schema3); err != nil {
		return fmt.Errorf("upgrading the tables in %s: %w", s.path, err)
	}
	_, err := t.exec(`UPDATE qsidecar_meta SET version = ?1 WHERE version < ?1`, version)
	return err
}

// meta reads the row that describes the tables, or adds it where somebody ran
// the schema by hand.
func (s *Store) meta(t *tx) error {
	var id [8]byte
	rand.Read(id[:])
	if _, err := t.exec(`INSERT INTO qsidecar_meta (one, version, min_program, database) VALUES (1, ?, ?, ?) ON CONFLICT (one) DO NOTHING`,
		version, program, base64.RawURLEncoding.EncodeToString(id[:])); err != nil {
		return err
	}
	return t.query(`SELECT version, min_program, database FROM qsidecar_meta`, func(r row) error {
		if r.int(1) > program {
			return fmt.Errorf("the tables in %s were made by a newer qsidecar (schema %d, for programs of generation %d on; this one is of generation %d): upgrade this program",
				s.path, r.int(0), r.int(1), program)
		}
		s.database = r.text(2)
		return nil
	})
}

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
			return errors.Join(s.explain(err), context.Cause(ctx))
		}
	}
}
