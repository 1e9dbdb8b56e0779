package postgres

import (
	"context"

	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// Short names for the parts of package migrate that the statements use.
type querier = migrate.Querier

var (
	in        = migrate.In
	quoteName = migrate.QuoteName
)

// migrate creates or updates the tables.
func (s *Store) migrate(ctx context.Context) error {
	meta, err := migrate.Run(ctx, migrate.Target{
		Schema: s.o.Schema, Place: s.place, Pool: s.single(), Config: s.heartbeat.config, Pooled: s.pooled, Log: s.log, Settings: s.setting,
		Transient: transient, Message: fullMessage, Later: s.o.later, Idle: s.o.idle, Hook: s.o.migrating,
	})
	s.database = meta.Database
	return err
}
