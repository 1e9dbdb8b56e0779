// Package product recognizes databases that answer like PostgreSQL or MySQL and aren't. They accept the connection and most
// statements, and differ in what the queue relies on.
package product

import (
	"fmt"
	"strings"
)

// others are the products, by a part of the version that they report, in lower case. The versions are from the products'
// documentation and sources; no test runs such a server.
var others = []struct{ mark, name, differs string }{
	{"cockroachdb", "CockroachDB", "it has other locks and system tables"},
	{"-yb-", "YugabyteDB", "it has other locks and system tables"},
	{"redshift", "Amazon Redshift", "it has no row locks"},
	{"greenplum", "Greenplum", "it has no SKIP LOCKED"},
	{"materialize", "Materialize", "it has no row locks"},
	{"-tidb-", "TiDB", "it accepts SKIP LOCKED and then doesn't lock the rows, so two workers would get one job"},
	{"tidb server", "TiDB", "it accepts SKIP LOCKED and then doesn't lock the rows, so two workers would get one job"},
	{"vitess", "Vitess", "a transaction over several shards isn't atomic"},
	{"planetscale", "PlanetScale", "a transaction over several shards isn't atomic"},
	{"oceanbase", "OceanBase", "it has other locks and system tables"},
	{"singlestore", "SingleStore", "it has no SKIP LOCKED"},
	{"starrocks", "StarRocks", "it has no row locks"},
	{"doris", "Apache Doris", "it has no row locks"},
}

// Check returns an error if the version that a server reports is that of a product that only answers like the named one.
func Check(name, version string) error {
	version = strings.ToLower(version)
	for _, o := range others {
		if strings.Contains(version, o.mark) {
			return fmt.Errorf("it is %s, which answers like %s but isn't: %s. The guarantees don't hold there: use a database on %s itself",
				o.name, name, o.differs, name)
		}
	}
	return nil
}
