package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/product"
)

// productSQL are the queries that describe a server to package product. Some products report the version of a PostgreSQL, and
// only tables of their own reveal them. Each query is sent alone, because such a product can reject one.
var productSQL = []string{
	"SELECT version()",
	"SELECT schema_name FROM information_schema.schemata WHERE schema_name = 'spanner_sys'",
	"SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'sys' AND c.relname = 'iam_pg_role_mappings'",
}

// checkProduct returns an error if the server is not PostgreSQL.
func checkProduct(ctx context.Context, c *pgconn.PgConn) error {
	text := ""
	for _, sql := range productSQL {
		r := c.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
		switch {
		case r.Err != nil && !fromServer(r.Err):
			return r.Err
		case r.Err == nil && len(r.Rows) > 0:
			text += string(r.Rows[0][0]) + "\n"
		}
	}
	return product.Check("PostgreSQL", text)
}
