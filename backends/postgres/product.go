package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends/internal/product"
)

// productSQL are the queries that describe a server to package product. Some products report the version of a PostgreSQL, and
// only tables of their own reveal them. Each query is sent alone, because such a product can reject one. It runs before the session
// has its search path, so it names the operator of PostgreSQL. A product that doesn't have such names gets the plain form.
var productSQL = []string{
	"SELECT pg_catalog.version()",
	"SELECT schema_name FROM information_schema.schemata WHERE schema_name OPERATOR(pg_catalog.=) 'spanner_sys'",
	"SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE n.nspname OPERATOR(pg_catalog.=) 'sys' AND c.relname OPERATOR(pg_catalog.=) 'iam_pg_role_mappings'",
}

// checkProduct returns an error if the server is not PostgreSQL.
func checkProduct(ctx context.Context, c *pgconn.PgConn) error {
	text := ""
	for _, sql := range productSQL {
		r := c.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
		if plain := strings.ReplaceAll(sql, "OPERATOR(pg_catalog.=)", "="); fromServer(r.Err) && plain != sql {
			r = c.ExecParams(ctx, plain, nil, nil, nil, nil).Read()
		}
		switch {
		case r.Err != nil && !fromServer(r.Err):
			return r.Err
		case r.Err == nil && len(r.Rows) > 0:
			text += string(r.Rows[0][0]) + "\n"
		}
	}
	return product.Check("PostgreSQL", text)
}
