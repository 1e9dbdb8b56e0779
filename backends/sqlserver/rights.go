package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlserver/migrate"
)

var grantedRights = regexp.MustCompile(`(?m)^GRANT ([A-Z, ]+) ON (\S+) TO`)

// RightsSQL returns the query for which rights on objects a login has: (name, class, need) in SQL.
func (s *Store) RightsSQL(rows []string) string {
	return strings.Replace(s.Statement("examine_rights"), "{RIGHTS}", strings.Join(rows, ",\n"), 1)
}

// OwnRights returns the rows of RightsSQL for the objects of the schema.
func OwnRights(schema string) (rows []string) {
	for _, m := range grantedRights.FindAllStringSubmatch(migrate.In(schema, migrate.Rights), -1) {
		for need := range strings.SplitSeq(m[1], ", ") {
			rows = append(rows, RightsRow(m[2], "OBJECT", need))
		}
	}
	return rows
}

// RightsRow returns a row of RightsSQL.
func RightsRow(name, class, need string) string {
	return fmt.Sprintf("  (%s, '%s', '%s')", migrate.QuoteText(name), class, need)
}

// MissingRights returns what the login lacks of the rights that `migrate --print` grants.
func (s *Store) MissingRights(ctx context.Context) (all []backends.MissingRights, err error) {
	err = s.Session(ctx, func(ctx context.Context, c *sql.Conn) error {
		all = nil
		if err := s.Rows(ctx, c, s.RightsSQL(OwnRights(s.o.Schema)), func(rows *sql.Rows) error {
			var name, need string
			var has bool
			if err := rows.Scan(&name, &need, &has); err != nil || has {
				return err
			}
			i := slices.IndexFunc(all, func(m backends.MissingRights) bool { return m.Target == name })
			if i < 0 {
				i, all = len(all), append(all, backends.MissingRights{Object: name[strings.LastIndexByte(name, '.')+1:], Target: name})
			}
			all[i].Rights = append(all[i].Rights, need)
			return nil
		}); err != nil || len(all) == 0 {
			return err
		}
		return s.Rows(ctx, c, "SELECT USER_NAME() AS who;", func(rows *sql.Rows) error {
			var user string
			err := rows.Scan(&user)
			for i := range all {
				all[i].Login = migrate.QuoteName(user)
			}
			return err
		})
	})
	return all, err
}
