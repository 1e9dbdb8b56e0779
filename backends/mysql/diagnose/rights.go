package diagnose

import (
	"context"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql"
)

// describeRights makes the server explain statements, which needs the same rights as running them.
// privileges is what the catalogue lists for each column. It lacks rights that come through a role, so it
// only hints at which columns to try individually.
func (d *describing) describeRights(ctx context.Context, privileges map[string]string) error {
	info := &d.info
	if len(info.Columns) == 0 {
		return nil
	}
	login, err := d.names(ctx, "SELECT CURRENT_USER()")
	if err != nil {
		return err
	}
	info.Grantee = mysql.Grantee(login[0])
	table := d.table()
	for _, right := range []struct {
		name, before, after string // around a column's name
		each                bool   // it can be granted for single columns
	}{
		{"SELECT", "SELECT ", " FROM " + table + " WHERE FALSE", true},
		{"INSERT", "INSERT INTO " + table + " (", ") VALUES (NULL)", true},
		{"UPDATE", "UPDATE " + table + " SET ", " = NULL WHERE FALSE", true},
		{"DELETE", "DELETE FROM " + table + " WHERE FALSE -- ", "", false},
	} {
		may := func(c backends.Column) bool {
			return slices.Contains(strings.Split(privileges[c.Name], ","), strings.ToLower(right.name)) && (!c.Generated || right.name == "SELECT")
		}
		allowed := func(c backends.Column) (bool, error) {
			switch _, err := d.session.Rows(ctx, "EXPLAIN "+right.before+d.engine.Dialect().Name(c.Name)+right.after); {
			case isCode(err, 1142, 1143, 1044):
				return false, nil
			case err != nil && !fromServer(err):
				return false, err
			}
			return true, nil
		}
		probe := info.Columns[max(0, slices.IndexFunc(info.Columns, func(c backends.Column) bool { return !c.Generated }))]
		some := slices.IndexFunc(info.Columns, may)
		if some >= 0 {
			probe = info.Columns[some]
		}
		if ok, err := allowed(probe); err != nil {
			return err
		} else if !ok {
			info.Denied = append(info.Denied, right.name)
			continue
		}
		for i := range info.Columns {
			c := &info.Columns[i]
			if !right.each || some < 0 || may(*c) || c.Generated && right.name != "SELECT" {
				continue
			}
			if ok, err := allowed(*c); err != nil {
				return err
			} else if !ok {
				c.Denied = append(c.Denied, right.name)
			}
		}
	}
	return nil
}
