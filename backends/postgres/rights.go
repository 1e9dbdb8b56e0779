package postgres

import (
	"context"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/postgres/migrate"
)

// missingRightsSQL reads what the role lacks: the object, its rights, the object and the role as a GRANT names them. $1 is the schema,
// $2 are the tables, $3 the sequences, $4 the functions. qsidecar_meta is only read. A trigger's function needs no right.
const missingRightsSQL = `
WITH n AS (SELECT oid, nspname, '"' || replace(current_user, '"', '""') || '"' AS role FROM pg_catalog.pg_namespace WHERE nspname = $1::text),
c AS (SELECT c.oid, c.relname, c.relkind, n.role, format('%I.%I', n.nspname, c.relname) AS target FROM pg_catalog.pg_class c JOIN n ON c.relnamespace = n.oid)
SELECT n.nspname::text, 'USAGE', format('SCHEMA %I', n.nspname), n.role FROM n WHERE NOT has_schema_privilege(n.oid, 'USAGE')
UNION ALL
SELECT c.relname::text, string_agg(p.name, ', ' ORDER BY p.n), c.target, c.role
FROM c CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) WITH ORDINALITY AS p (name, n)
WHERE c.relname = ANY($2::text[]) AND c.relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, p.name) AND (c.relname <> 'qsidecar_meta' OR p.name = 'SELECT')
GROUP BY c.relname, c.target, c.role
UNION ALL
SELECT c.relname::text, 'USAGE', 'SEQUENCE ' || c.target, c.role FROM c
WHERE c.relname = ANY($3::text[]) AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') END
UNION ALL
SELECT p.proname::text, 'EXECUTE', 'FUNCTION ' || p.oid::pg_catalog.regprocedure, n.role FROM pg_catalog.pg_proc p JOIN n ON p.pronamespace = n.oid
WHERE p.proname = ANY($4::text[]) AND p.prorettype <> 'trigger'::pg_catalog.regtype AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1`

// MissingRights returns what the role lacks of the rights that `migrate --print` grants.
func (s *Store) MissingRights(ctx context.Context) (all []backends.MissingRights, err error) {
	names := func(kind string) []string { return migrate.Names(kind, migrate.Latest) }
	err = s.Query(ctx, &backends.Statement{
		Text: missingRightsSQL, Args: []any{s.o.Schema, names("TABLE"), names("SEQUENCE"), names("FUNCTION")},
		Row: func(cells [][]byte) error {
			all = append(all, backends.MissingRights{Object: string(cells[0]), Rights: strings.Split(string(cells[1]), ", "), Target: string(cells[2]), Login: string(cells[3])})
			return nil
		},
	})
	return all, err
}
