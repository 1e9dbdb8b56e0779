package sqlserver

import (
	"context"
	"fmt"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

// Short names for the parts of package migrate that the statements use.
var (
	in        = migrate.In
	quoteName = migrate.QuoteName
	quoteText = migrate.QuoteText
)

const migrateFor = 5 * time.Minute

// migrate creates the tables, or updates them to migrate.Latest. Any number of sidecars can do so at the same time.
func (s *Store) migrate(ctx context.Context) error {
	latest := migrate.Latest + len(s.o.later)
	meta, err := migrate.Read(ctx, s.db, s.place, s.o.Schema)
	if err == nil && meta.Version < latest {
		if err = s.Again(ctx, s.complete); err == nil {
			meta, err = migrate.Read(ctx, s.db, s.place, s.o.Schema)
		}
	}
	if err == nil && meta.Version < latest {
		err = fmt.Errorf("the tables in %s, schema %s, are of version %d, and version %d is needed", s.place, s.o.Schema, meta.Version, latest)
	}
	s.database = meta.Database
	return err
}

// complete runs the missing migrations in one transaction.
func (s *Store) complete(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, migrateFor)
	defer cancel()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	t := &tx{s: s, c: c, slot: &txSlot{}}
	if _, err = c.ExecContext(ctx, s.sql.begin); err == nil {
		err = migrate.Advance(ctx, c, s.place, s.o.Schema, s.o.later...)
	}
	if err == nil {
		_, err = c.ExecContext(ctx, commitSQL)
	}
	if err != nil {
		t.rollback(ctx, err)
		if core.Known(err) || whenAgain(err) != never {
			return err
		}
		return fmt.Errorf("creating the tables in %s, schema %s (a person with more rights can run what `qsidecar migrate --print` shows, with the option --role and the user of this sidecar): %w", s.place, s.o.Schema, err)
	}
	t.close()
	return nil
}
