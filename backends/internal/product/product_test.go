package product

import (
	"strings"
	"testing"
)

// TestProducts uses versions as the products report them, by their documentation. No test runs these servers.
func TestProducts(t *testing.T) {
	t.Parallel()
	for version, name := range map[string]string{
		"CockroachDB CCL v24.1.3 (x86_64-pc-linux-gnu, built 2024/07/31 19:07:49, go1.22.5 X:nocoverageredesign)":       "CockroachDB",
		"PostgreSQL 11.2-YB-2.20.1.3-b0 on x86_64-pc-linux-gnu, compiled by clang version 16.0.6, 64-bit":               "YugabyteDB",
		"PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2 20041017, Redshift 1.0.12103":           "Redshift",
		"PostgreSQL 12.12 (Greenplum Database 7.1.0 build commit:e7c2b1f14bb42a1018ac57d14f4436880e0a0515 Open Source)": "Greenplum",
		"8.0.11-TiDB-v7.5.0 TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible":                   "TiDB",
		"8.0.30-Vitess Version: 19.0.0":                                                                                 "Vitess",
		"5.7.25-OceanBase-v4.2.1.0 OceanBase 4.2.1.0":                                                                   "OceanBase",
		"5.7.32 SingleStoreDB source distribution (compatible; MySQL Enterprise & MySQL Commercial)":                    "SingleStore",
		"PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0":   "",
		"10.11.19-MariaDB-0+deb12u1 Debian 12":                                                                          "",
		"8.0.36-28.1 Percona XtraDB Cluster (GPL), Release rel28, Revision bfb687f, WSREP version 26.1.4.3":             "",
		"8.0.36 MySQL Community Server - GPL":                                                                           "",
		"8.0.35 Source distribution":                                                                                    "",
		"PostgreSQL 16.1 on aarch64-unknown-linux-gnu, compiled by aarch64-unknown-linux-gnu-gcc (GCC) 9.5.0, 64-bit":   "",
		"PostgreSQL 17.2 (EnterpriseDB Advanced Server 17.2.0) on x86_64-pc-linux-gnu, compiled by gcc (Debian) 64-bit": "",
		"11.4.2-MariaDB-ubu2404 mariadb.org binary distribution":                                                        "",
	} {
		err := Check("PostgreSQL", version)
		if (err != nil) != (name != "") || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want %q", version, err, name)
		}
	}
}
