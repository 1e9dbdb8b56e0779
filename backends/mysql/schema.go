package mysql

import (
	"context"

	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// migrate creates or updates the tables.
func (s *Store) migrate(ctx context.Context) error {
	c, err := s.dialer.Dial(ctx, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	meta, err := migrate.Run(ctx, Session{s: s, c: c}, s.place, s.dialer.Config.DBName, s.o.later...)
	s.database = meta.Database
	return err
}
