// Package product recognizes databases that answer like PostgreSQL or MySQL and aren't. They accept the connection and most
// statements, and differ in what the queue relies on.
package product

import (
	"fmt"
	"strings"
)

// others are the products, by a part of the version that they report, or by the name of a table or schema that only they
// have, in lower case. These are from the products' documentation and sources; no test runs such a server.
var others = []struct{ mark, name, differs string }{
	{"cockroachdb", "CockroachDB", "it has other locks and system tables"},
	{"-yb-", "YugabyteDB", "it has other locks and system tables"},
	{"redshift", "Amazon Redshift", "it has no row locks"},
	{"greenplum", "Greenplum", "it has no SKIP LOCKED"},
	{"materialize", "Materialize", "it has no row locks"},
	{"spanner_sys", "Spanner", "it has other locks and system tables"},
	{"iam_pg_role_mappings", "Aurora DSQL", "FOR UPDATE locks no rows there: conflicts show when a transaction commits"},
	{"-tidb-", "TiDB", "it accepts SKIP LOCKED and then doesn't lock the rows, so two workers would get one job"},
	{"tidb server", "TiDB", "it accepts SKIP LOCKED and then doesn't lock the rows, so two workers would get one job"},
	{"vitess", "Vitess", "a transaction over several shards isn't atomic"},
	{"planetscale", "PlanetScale", "a transaction over several shards isn't atomic"},
	{"oceanbase", "OceanBase", "it has other locks and system tables"},
	{"singlestore", "SingleStore", "it has no SKIP LOCKED"},
	{"starrocks", "StarRocks", "it has no row locks"},
	{"doris", "Apache Doris", "it has no row locks"},
}

// Check returns an error if what a server reports about itself is that of a product that only answers like the named one:
// its version, and tables.
func Check(name, reported string) error {
	reported = strings.ToLower(reported)
	for _, o := range others {
		if strings.Contains(reported, o.mark) {
			return fmt.Errorf("it is %s, which answers like %s but isn't: %s. The guarantees don't hold there: use a database on %s itself",
				o.name, name, o.differs, name)
		}
	}
	return nil
}
