// Package cluster reads what a PostgreSQL server reports about its cluster. It changes nothing. Start reading at Read.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Facts are what a server reports about its cluster.
type Facts struct {
	ID        string // the system identifier, which all servers of a cluster share; empty: not visible
	Timeline  string // 8 hexadecimal digits; empty: not visible
	IsStandby bool
	Standbys  []Standby      // of a primary
	Names     string         // synchronous_standby_names
	Receives  bool           // a standby that is connected to its source
	Lag       *time.Duration // of a standby; nil: not visible
	Products  []string       // managed products and extensions that change what a cluster does
}

// Standby is a server that replicates from a primary.
type Standby struct {
	Name, State string // empty: not visible
	Sync        bool
	Lag         time.Duration // between a commit here and its replay there
}

const (
	// identitySQL can be refused by a managed product.
	identitySQL = `SELECT s.system_identifier::text, CASE WHEN pg_is_in_recovery() THEN upper(lpad(to_hex(c.timeline_id), 8, '0'))
		ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END FROM pg_control_system() s, pg_control_checkpoint() c`

	stateSQL = `SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'),
		EXISTS (SELECT FROM pg_stat_wal_receiver WHERE coalesce(status, 'streaming') = 'streaming'),
		CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
			ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 END,
		(SELECT array_agg(name ORDER BY name) FROM (VALUES
			('Amazon Aurora', EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version')),
			('Amazon RDS', current_setting('rds.superuser_variables', true) IS NOT NULL AND NOT EXISTS (SELECT FROM pg_proc WHERE proname = 'aurora_version')),
			('Google Cloud SQL', current_setting('cloudsql.supported_extensions', true) IS NOT NULL),
			('Azure Database for PostgreSQL', current_setting('azure.extensions', true) IS NOT NULL),
			('Citus', EXISTS (SELECT FROM pg_extension WHERE extname = 'citus'))) AS product (name, found) WHERE found)`

	standbysSQL = `SELECT coalesce(application_name, ''), coalesce(state, ''), coalesce(sync_state IN ('sync', 'quorum'), false),
		coalesce(extract(epoch FROM replay_lag), 0)::float8 FROM pg_stat_replication WHERE coalesce(application_name, '') <> 'pg_basebackup' ORDER BY 1`
)

// Read queries a server. In a transaction it must be the last user: a server that refuses the last query aborts it.
func Read(ctx context.Context, c interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (f Facts, err error) {
	var lag *float64
	if err := c.QueryRow(ctx, stateSQL).Scan(&f.IsStandby, &f.Names, &f.Receives, &lag, &f.Products); err != nil {
		return f, err
	}
	if lag != nil {
		d := seconds(*lag)
		f.Lag = &d
	}
	rows, err := c.Query(ctx, standbysSQL)
	if err != nil {
		return f, err
	}
	var s Standby
	var behind float64
	if _, err = pgx.ForEachRow(rows, []any{&s.Name, &s.State, &s.Sync, &behind}, func() error {
		s.Lag = seconds(behind)
		f.Standbys = append(f.Standbys, s)
		return nil
	}); err != nil {
		return f, err
	}
	err = c.QueryRow(ctx, identitySQL).Scan(&f.ID, &f.Timeline)
	if _, refused := errors.AsType[*pgconn.PgError](err); refused {
		return f, nil
	}
	return f, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Role describes the server in a few words.
func (f *Facts) Role() string {
	var parts []string
	switch {
	case f.IsStandby:
		parts = append(parts, "standby")
	case len(f.Standbys) == 0:
		parts = append(parts, "single server")
	default:
		parts = append(parts, fmt.Sprintf("primary of %d", 1+len(f.Standbys)))
	}
	if t := strings.TrimLeft(f.Timeline, "0"); t != "" {
		parts = append(parts, "timeline "+t)
	}
	switch {
	case f.IsStandby:
	case f.Names != "":
		parts = append(parts, "synchronous")
	case len(f.Standbys) > 0:
		parts = append(parts, "asynchronous")
	}
	return strings.Join(append(parts, f.Products...), ", ")
}

// Synchronous returns how many standbys commits wait for or can wait for.
func (f *Facts) Synchronous() (n int) {
	for _, s := range f.Standbys {
		if s.Sync {
			n++
		}
	}
	return n
}
