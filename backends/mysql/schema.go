package mysql

import (
	"context"

	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// Short names for functions of package migrate.
var (
	quoteText = migrate.QuoteText
	quoteName = migrate.QuoteName
)

const position = migrate.Position

// migrate creates or updates the tables.
func (s *Store) migrate(ctx context.Context) error {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer c.close()
	meta, err := migrate.Run(ctx, Session{s: s, c: c}, s.place, s.config.DBName)
	s.database = meta.Database
	return err
}
