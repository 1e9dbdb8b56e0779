package cluster

import "testing"

// TestRole uses answers of products and set-ups that the tests can't run, by their documentation.
func TestRole(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]Facts{
		"single server":                                          {Vars: map[string]string{"version": "8.0.36", "basedir": "/usr/"}},
		"single server, Amazon Aurora":                           {Vars: map[string]string{"aurora_version": "3.08.0", "basedir": "/rdsdbbin/oscar/"}},
		"single server, Amazon RDS":                              {Vars: map[string]string{"version": "8.0.40", "basedir": "/rdsdbbin/mysql-8.0.40.R2/"}},
		"single server, Google Cloud SQL":                        {Vars: map[string]string{"version": "8.0.31-google"}},
		"single server, Azure Database for MySQL":                {Vars: map[string]string{"version": "8.0.37-azure"}},
		"source of 2, semi-synchronous":                          {Vars: map[string]string{"rpl_semi_sync_source_enabled": "ON"}, Replicas: 2},
		"replica of a:3306, writable, source of 1, asynchronous": {Sources: []Source{{Address: "a:3306"}}, Replicas: 1},
		"Galera node of 3, Donor/Desynced":                       {Vars: map[string]string{"wsrep_on": "ON", "wsrep_cluster_size": "3", "wsrep_local_state_comment": "Donor/Desynced"}},
	} {
		if got := f.Role(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
