// Package cluster reads what a MySQL or MariaDB server reports about its cluster. It changes nothing. Start reading at Read.
package cluster

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
)

// Kind is how the servers of a cluster replicate.
type Kind string

// The kinds.
const (
	Galera Kind = "Galera"
	Group  Kind = "group replication"
	Semi   Kind = "semi-synchronous replication"
	Async  Kind = "asynchronous replication"
	Single Kind = "single server"
)

// Facts are what a server reports about its cluster.
type Facts struct {
	Vars     map[string]string // settings and status of the server that name its cluster, by lower-case name
	Members  []Member          // of a group; nil: not visible
	Sources  []Source          // of which the server is a replica
	Replicas int               // those that are connected and that the user can see
}

// Member is a member of a group.
type Member struct{ Address, State, Role string }

// Source is a server from which another one replicates.
type Source struct {
	Address string
	Server  string // see Facts.Server
	Running bool
	Behind  string // in seconds; empty: unknown
}

// rows runs a query. It returns all values as texts.
type rows func(ctx context.Context, query string, args ...any) ([][]sql.NullString, error)

const (
	varsSQL = `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_sync_wait', 'wsrep_node_name', 'pxc_strict_mode', 'group_replication_group_name',
		'group_replication_single_primary_mode', 'group_replication_consistency', 'read_only', 'super_read_only', 'innodb_read_only', 'server_uuid', 'server_id', 'version', 'basedir',
		'aurora_version', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'rpl_semi_sync_master_timeout', 'rpl_semi_sync_source_timeout')`
	statusSQL = `SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_cluster_size', 'wsrep_cluster_status', 'wsrep_local_state_comment', 'wsrep_ready',
		'wsrep_cluster_state_uuid', 'rpl_semi_sync_master_status', 'rpl_semi_sync_source_status', 'rpl_semi_sync_master_clients', 'rpl_semi_sync_source_clients')`
	membersSQL = `SELECT CONCAT(member_host, ':', member_port), member_state, member_role FROM performance_schema.replication_group_members WHERE member_host <> '' ORDER BY 1`
)

// Read queries a server. refused reports whether an error is the server's refusal of a query. What a server refuses is left out.
func Read(ctx context.Context, query rows, maria bool, version int, refused func(error) bool) (f Facts, err error) {
	ask := func(sql string, each func(row []sql.NullString)) {
		if err != nil {
			return
		}
		all, failed := query(ctx, sql)
		if failed != nil && !refused(failed) {
			err = failed
		}
		for _, row := range all {
			each(row)
		}
	}
	f.Vars = map[string]string{}
	set := func(row []sql.NullString) { f.Vars[strings.ToLower(row[0].String)] = row[1].String }
	ask(varsSQL, set)
	ask(statusSQL, set)
	if f.Vars["group_replication_group_name"] != "" {
		ask(membersSQL, func(row []sql.NullString) {
			f.Members = append(f.Members, Member{row[0].String, row[1].String, row[2].String})
		})
	}
	replica, sessions, skip, server := "SHOW REPLICA STATUS", "performance_schema.processlist", 0, columnUUID
	switch {
	case maria:
		replica, sessions, skip, server = "SHOW ALL SLAVES STATUS", "information_schema.processlist", 2, columnID
	case version < 80022:
		replica, sessions = "SHOW SLAVE STATUS", "information_schema.processlist"
	}
	ask(replica, func(row []sql.NullString) { f.Sources = appendSource(f.Sources, row[skip:], server) })
	ask("SELECT COUNT(*) FROM "+sessions+" WHERE command LIKE 'Binlog Dump%'", func(row []sql.NullString) { f.Replicas, _ = strconv.Atoi(row[0].String) })
	return f, err
}

// The columns of SHOW REPLICA STATUS, which the servers have in one order.
const (
	columnHost, columnPort     = 1, 3
	columnReceives, columnRuns = 10, 11
	columnBehind               = 32
	columnID, columnUUID       = 39, 40 // MariaDB has no UUID
)

// appendSource appends the source of a row of SHOW REPLICA STATUS. A group has rows without a host, or for its own use.
func appendSource(all []Source, row []sql.NullString, server int) []Source {
	if len(row) <= server || row[columnHost].String == "" || row[columnHost].String == "<NULL>" {
		return all
	}
	return append(all, Source{Address: row[columnHost].String + ":" + row[columnPort].String, Server: row[server].String, Behind: row[columnBehind].String,
		Running: row[columnReceives].String != "No" && row[columnRuns].String == "Yes"})
}

func (f *Facts) on(names ...string) bool {
	for _, name := range names {
		if v := strings.ToUpper(f.Vars[name]); v == "ON" || v == "1" {
			return true
		}
	}
	return false
}

// Value returns a setting that has several names.
func (f *Facts) Value(names ...string) string {
	for _, name := range names {
		if v := f.Vars[name]; v != "" {
			return v
		}
	}
	return ""
}

// Kind returns how the server replicates.
func (f *Facts) Kind() Kind {
	switch {
	case f.on("wsrep_on"):
		return Galera
	case f.Vars["group_replication_group_name"] != "":
		return Group
	case f.on("rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled"):
		return Semi
	case f.Replicas > 0 || len(f.Sources) > 0:
		return Async
	}
	return Single
}

// Writable reports whether the server accepts writes.
func (f *Facts) Writable() bool { return !f.on("read_only", "super_read_only", "innodb_read_only") }

// SinglePrimary reports whether only one member of a group accepts writes.
func (f *Facts) SinglePrimary() bool { return f.on("group_replication_single_primary_mode") }

// SemiSynchronous reports whether commits wait for a replica now.
func (f *Facts) SemiSynchronous() bool {
	return f.on("rpl_semi_sync_source_status", "rpl_semi_sync_master_status")
}

// ID returns what all servers of a cluster share; empty: unknown.
func (f *Facts) ID() string {
	switch f.Kind() {
	case Galera:
		return f.Vars["wsrep_cluster_state_uuid"]
	case Group:
		return f.Vars["group_replication_group_name"]
	}
	return ""
}

// Server returns what identifies the server among those that replicate from each other.
func (f *Facts) Server() string { return f.Value("server_uuid", "server_id") }

// Role describes the server in a few words.
func (f *Facts) Role() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	switch kind := f.Kind(); kind {
	case Galera:
		add("Galera node of %s, %s", f.Vars["wsrep_cluster_size"], f.Vars["wsrep_local_state_comment"])
	case Group:
		mode := "multi-primary"
		if f.SinglePrimary() {
			mode = "single-primary"
		}
		role := "secondary"
		if f.Writable() {
			role = "primary"
		}
		add("group replication, %s of %d, %s", role, len(f.Members), mode)
	default:
		if len(f.Sources) > 0 {
			writes := "read-only"
			if f.Writable() {
				writes = "writable"
			}
			add("replica of %s, %s", f.Sources[0].Address, writes)
		}
		if f.Replicas > 0 {
			add("source of %d", f.Replicas)
		}
		if kind != Single {
			add("%s", strings.TrimSuffix(string(kind), " replication"))
		} else {
			add("%s", kind)
		}
	}
	return strings.Join(append(parts, f.Products()...), ", ")
}

// Products returns the managed product that runs the server, if it is one.
func (f *Facts) Products() []string {
	switch version := strings.ToLower(f.Vars["version"]); {
	case f.Vars["aurora_version"] != "":
		return []string{"Amazon Aurora"}
	case strings.HasPrefix(f.Vars["basedir"], "/rdsdbbin"):
		return []string{"Amazon RDS"}
	case strings.Contains(version, "-google"):
		return []string{"Google Cloud SQL"}
	case strings.Contains(version, "-azure"):
		return []string{"Azure Database for MySQL"}
	}
	return nil
}
