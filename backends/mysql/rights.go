package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/migrate"
)

// ownTables are the tables that a sidecar reads and writes.
var ownTables = []string{"qsidecar_jobs", "qsidecar_failures", "qsidecar_prunable", "qsidecar_expiring", "qsidecar_keys", "qsidecar_sidecars", "qsidecar_queues", "qsidecar_gates", "qsidecar_capped", "qsidecar_cancelled", "qsidecar_progress", "qsidecar_pending", "qsidecar_stripes", "qsidecar_admissions", "qsidecar_admitted", "qsidecar_schedules", "qsidecar_batches", "qsidecar_batch_members", "qsidecar_batch_notes", "qsidecar_history", "qsidecar_commits", "qsidecar_leases"}

// ownRights are statements that need a right on a table, with its name and its first column.
var ownRights = []struct{ right, sql string }{
	{"SELECT", "SELECT 1 FROM %[1]s WHERE FALSE"},
	{"INSERT", "INSERT INTO %[1]s (%[2]s) VALUES (1)"},
	{"UPDATE", "UPDATE %[1]s SET %[2]s = 1 WHERE FALSE"},
	{"DELETE", "DELETE FROM %[1]s WHERE FALSE"},
}

// MissingRights returns what the user lacks of the rights that `migrate --print` grants.
func (s *Store) MissingRights(ctx context.Context) (all []backends.MissingRights, err error) {
	err = s.Read(ctx, func(ctx context.Context, x Session) (err error) {
		all, err = x.MissingRights(ctx)
		return err
	})
	return all, err
}

// MissingRights is Store.MissingRights in this session. It makes the server explain statements, which needs the same rights as running
// them: the catalogue doesn't show rights that come with a role.
func (s Session) MissingRights(ctx context.Context) (all []backends.MissingRights, err error) {
	columns, err := s.Rows(ctx, `SELECT table_name, column_name, DATABASE(), CURRENT_USER() FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name LIKE 'qsidecar\_%' ORDER BY ordinal_position DESC`)
	if err != nil {
		return nil, err
	}
	first := map[string]string{}
	database, login := "", ""
	for _, r := range columns {
		first[r[0].String], database, login = r[1].String, r[2].String, Grantee(r[3].String)
	}
	for _, table := range ownTables {
		m := backends.MissingRights{Object: table, Target: migrate.QuoteName(database) + "." + table, Login: login}
		for _, r := range ownRights {
			if first[table] == "" { // no right at all
				m.Rights = append(m.Rights, r.right)
				continue
			}
			_, err := s.Rows(ctx, "EXPLAIN "+fmt.Sprintf(r.sql, table, migrate.QuoteName(first[table])))
			switch _, answered := errors.AsType[*mysql.MySQLError](err); {
			case session.IsCode(err, 1142, 1143, 1044):
				m.Rights = append(m.Rights, r.right)
			case err != nil && !answered:
				return nil, err
			}
		}
		if len(m.Rights) > 0 {
			all = append(all, m)
		}
	}
	return all, nil
}

// Grantee returns a user as a GRANT names it. user is what CURRENT_USER() returns.
func Grantee(user string) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	if i := strings.LastIndexByte(user, '@'); i >= 0 {
		return quote(user[:i]) + "@" + quote(user[i+1:])
	}
	return quote(user) // a role
}
