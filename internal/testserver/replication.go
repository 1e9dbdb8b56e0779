package testserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Replication is a source and replicas that follow it by GTID, on 127.0.0.1. Each server is read-only
// after a start.
type Replication struct {
	Nodes  []*MySQL
	Source *MySQL

	semiSync bool
}

// StartReplication starts n servers. The first one is the source. If semiSync is true, its commits wait
// for one replica, however long that takes.
func StartReplication(ctx context.Context, kind Kind, n int, semiSync bool) (_ *Replication, err error) {
	r := &Replication{semiSync: semiSync}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	for i := range n {
		settings := SourceSettings()
		maps.Copy(settings, replicationSettings(kind))
		settings["server-id"] = fmt.Sprint(i + 1)
		node, err := StartMySQL(ctx, kind, Options{Durable: true, Settings: settings})
		if err != nil {
			return nil, err
		}
		r.Nodes = append(r.Nodes, node)
	}
	if err := r.promote(ctx, r.Nodes[0]); err != nil {
		return nil, err
	}
	return r, r.Whole(ctx)
}

func replicationSettings(kind Kind) map[string]string {
	const never = "1000000000" // ms
	if origins[kind].maria {
		return map[string]string{"read-only": "ON", "log-slave-updates": "ON", "gtid-strict-mode": "ON",
			"rpl-semi-sync-slave-enabled": "ON", "rpl-semi-sync-master-wait-point": "AFTER_SYNC", "rpl-semi-sync-master-timeout": never}
	}
	return map[string]string{"read-only": "ON", "gtid-mode": "ON", "enforce-gtid-consistency": "ON", "relay-log-recovery": "ON", "replica-parallel-workers": "0",
		"plugin-load":                   "semisync_source.so;semisync_replica.so",
		"rpl-semi-sync-replica-enabled": "ON", "rpl-semi-sync-source-wait-point": "AFTER_SYNC", "rpl-semi-sync-source-timeout": never}
}

// Stop ends all servers and removes their data.
func (r *Replication) Stop() (err error) {
	for _, node := range r.Nodes {
		err = errors.Join(err, node.Stop())
	}
	return err
}

// Whole waits until each replica has all that the source has now.
func (r *Replication) Whole(ctx context.Context) error {
	for _, node := range r.Nodes {
		if node != r.Source {
			if err := node.caughtUpByGTID(ctx, r.Source); err != nil {
				return err
			}
		}
	}
	return nil
}

// Switch makes a replica the source after the source became read-only. Nothing is lost.
func (r *Replication) Switch(ctx context.Context, to *MySQL) error {
	old := r.Source
	if err := errors.Join(old.Exec(ctx, readOnly), to.caughtUpByGTID(ctx, old)); err != nil {
		return err
	}
	return r.promote(ctx, to)
}

// Failover makes the replica that received most the source. The old source crashed or hangs, and stays out until Return.
func (r *Replication) Failover(ctx context.Context) error {
	old := r.Source
	var best *MySQL
	for _, node := range r.Nodes {
		if node == old {
			continue
		}
		if err := node.applyReceived(ctx); err != nil {
			return err
		}
		if best == nil {
			best = node
			continue
		}
		has, err := best.transactions(ctx)
		if err != nil {
			return err
		}
		if more, err := node.includes(ctx, has); err != nil {
			return err
		} else if more {
			best = node
		}
	}
	return r.promote(ctx, best, old)
}

// promote makes a server the source of all others but those that are out.
func (r *Replication) promote(ctx context.Context, to *MySQL, out ...*MySQL) error {
	statements := []string{to.replica("STOP"), to.replica("RESET")}
	if r.semiSync {
		statements = append(statements, to.semiSync("ON"))
	}
	if err := to.Exec(ctx, statements...); err != nil {
		return err
	}
	r.Source = to
	for _, node := range r.Nodes {
		if node != to && !slices.Contains(out, node) {
			if err := r.follow(ctx, node); err != nil {
				return err
			}
		}
	}
	return to.Exec(ctx, "SET GLOBAL read_only = OFF")
}

// follow makes a server a replica of the source.
func (r *Replication) follow(ctx context.Context, node *MySQL) error {
	change, by := "CHANGE REPLICATION SOURCE TO SOURCE", "SOURCE_AUTO_POSITION = 1, SOURCE_RETRY_COUNT = 0, GET_SOURCE_PUBLIC_KEY = 1" // it gives up after 10 tries otherwise
	statements := []string{readOnly, node.semiSync("OFF"), node.replica("STOP")}
	if origins[node.Kind].maria {
		change, by = "CHANGE MASTER TO MASTER", "MASTER_USE_GTID = slave_pos"
		statements = append(statements, "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos")
	}
	keyword := change[strings.LastIndex(change, " ")+1:]
	statements = append(statements, fmt.Sprintf("%[1]s_HOST = '%[3]s', %[2]s_PORT = %[4]s, %[2]s_USER = '%[5]s', %[2]s_PASSWORD = '%[6]s', %[2]s_CONNECT_RETRY = 1, %[7]s",
		change, keyword, r.Source.Host, r.Source.Port, r.Source.User, strings.ReplaceAll(r.Source.Password, "'", "''"), by), node.replica("START"))
	return node.Exec(ctx, statements...)
}

// Return makes an old source a replica. It starts the server if that has ended. If the server has transactions that
// the source doesn't have, its data is replaced by a copy of another replica's data.
func (r *Replication) Return(ctx context.Context, old *MySQL) error {
	if old.Ended() {
		if err := old.Restart(ctx); err != nil {
			return err
		}
	}
	has, err := old.transactions(ctx)
	if err != nil {
		return err
	}
	same, err := r.Source.includes(ctx, has)
	if err != nil {
		return err
	}
	if !same {
		if err := r.copyTo(ctx, old); err != nil {
			return err
		}
	}
	return errors.Join(r.follow(ctx, old), r.Whole(ctx))
}

// copyTo replaces a server's data by that of another replica.
func (r *Replication) copyTo(ctx context.Context, old *MySQL) error {
	i := slices.IndexFunc(r.Nodes, func(node *MySQL) bool { return node != r.Source && node != old })
	if i < 0 {
		return errors.New("there is no other replica to copy")
	}
	from := r.Nodes[i]
	if err := errors.Join(old.Kill9(), from.Halt(), os.RemoveAll(filepath.Join(old.dir, "data"))); err != nil {
		return err
	}
	return errors.Join(prepare(old.dir, filepath.Join(from.dir, "data"), old.who), old.ownID(),
		from.Restart(ctx), r.follow(ctx, from), old.Restart(ctx))
}

// Detach ends the replicas' connections to the source. They receive nothing until Failover or Return.
func (r *Replication) Detach(ctx context.Context) error {
	for _, node := range r.Nodes {
		if node != r.Source {
			if err := node.Exec(ctx, node.replica("STOP")+" IO_THREAD"); err != nil {
				return err
			}
		}
	}
	return nil
}

// SourceSettings returns the settings of a server that gets a Replica.
func SourceSettings() map[string]string {
	return map[string]string{"server-id": "1", "log-bin": "binlog", "binlog-format": "ROW"}
}

// Replica starts a read-only server that replicates m. m must have SourceSettings and no data yet.
func (m *MySQL) Replica(ctx context.Context) (*MySQL, error) {
	file, at, err := m.position(ctx)
	if err != nil {
		return nil, err
	}
	settings := SourceSettings()
	maps.Copy(settings, map[string]string{"server-id": "2", "read-only": "ON"})
	r, err := StartMySQL(ctx, m.Kind, Options{Durable: true, Settings: settings})
	if err != nil {
		return nil, err
	}
	change, more := "REPLICATION SOURCE TO SOURCE", ", GET_SOURCE_PUBLIC_KEY = 1"
	if origins[m.Kind].maria {
		change, more = "MASTER TO MASTER", ""
	}
	keyword := change[strings.LastIndex(change, " ")+1:]
	err = r.Exec(ctx, fmt.Sprintf("CHANGE %[1]s_HOST = '%[3]s', %[2]s_PORT = %[4]s, %[2]s_USER = '%[5]s', %[2]s_PASSWORD = '%[6]s', %[2]s_LOG_FILE = '%[7]s', %[2]s_LOG_POS = %[8]s%[9]s",
		change, keyword, m.Host, m.Port, m.User, strings.ReplaceAll(m.Password, "'", "''"), file, at, more), r.replica("START"))
	if err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

// CaughtUp waits until the replica has all data that the source has now.
func (m *MySQL) CaughtUp(ctx context.Context, source *MySQL) error {
	file, at, err := source.position(ctx)
	if err != nil {
		return err
	}
	wait := "SOURCE_POS_WAIT"
	if origins[m.Kind].maria {
		wait = "MASTER_POS_WAIT"
	}
	return testwait.Poll(ctx, func(ctx context.Context) error {
		row, err := m.row(ctx, fmt.Sprintf("SELECT %s('%s', %s, 1)", wait, file, at))
		if err == nil && (row[0] == "" || row[0] == "-1") {
			err = fmt.Errorf("the replica has not all up to %s:%s", file, at)
		}
		return err
	})
}

// Promote ends the replication, so that the replica accepts writes.
func (m *MySQL) Promote(ctx context.Context) error {
	return m.Exec(ctx, m.replica("STOP"), m.replica("RESET"), "SET GLOBAL read_only = OFF")
}

// caughtUpByGTID waits until the server has all transactions that the other one has now.
func (m *MySQL) caughtUpByGTID(ctx context.Context, other *MySQL) error {
	has, err := other.transactions(ctx)
	if err != nil {
		return err
	}
	return testwait.Poll(ctx, func(ctx context.Context) error {
		all, err := m.includes(ctx, has)
		if err == nil && !all {
			row, failed := m.named(ctx, m.replica("SHOW")+" STATUS")
			err = errors.Join(fmt.Errorf("the replica at port %s has not all of %s; I/O error: %q, SQL error: %q", m.Port, has, row["last_io_error"], row["last_sql_error"]), failed)
		}
		return err
	})
}

const readOnly = "SET GLOBAL read_only = ON"

// semiSync returns the statement that makes commits wait for a replica, or not.
func (m *MySQL) semiSync(value string) string {
	if origins[m.Kind].maria {
		return "SET GLOBAL rpl_semi_sync_master_enabled = " + value
	}
	return "SET GLOBAL rpl_semi_sync_source_enabled = " + value
}

// applyReceived ends the connection to the source and waits until all that was received is applied.
func (m *MySQL) applyReceived(ctx context.Context) error {
	if err := m.Exec(ctx, m.replica("STOP")+" IO_THREAD"); err != nil {
		return err
	}
	query, wait := "SELECT received_transaction_set FROM performance_schema.replication_connection_status WHERE channel_name = ''", "WAIT_FOR_EXECUTED_GTID_SET"
	if origins[m.Kind].maria {
		query, wait = "SHOW SLAVE STATUS", "MASTER_GTID_WAIT"
	}
	row, err := m.named(ctx, query)
	if err != nil {
		return err
	}
	received := row["received_transaction_set"] + row["gtid_io_pos"] // one of them
	return testwait.Poll(ctx, func(ctx context.Context) error {
		row, err := m.row(ctx, fmt.Sprintf("SELECT %s('%s', 1)", wait, received))
		if err == nil && row[0] != "0" {
			err = fmt.Errorf("the replica at port %s has not applied %s", m.Port, received)
		}
		return err
	})
}

// transactions returns the transactions that a server has, in the form of its product.
func (m *MySQL) transactions(ctx context.Context) (string, error) {
	variable := "gtid_executed"
	if origins[m.Kind].maria {
		variable = "gtid_binlog_state"
	}
	row, err := m.row(ctx, "SELECT @@GLOBAL."+variable)
	if err != nil {
		return "", err
	}
	return row[0], nil
}

// includes reports whether a server has all these transactions of another one.
func (m *MySQL) includes(ctx context.Context, others string) (bool, error) {
	if !origins[m.Kind].maria {
		row, err := m.row(ctx, "SELECT GTID_SUBSET('"+others+"', @@GLOBAL.gtid_executed)")
		return err == nil && row[0] == "1", err
	}
	own, err := m.transactions(ctx)
	if err != nil {
		return false, err
	}
	latest, err := byServer(own)
	if err != nil {
		return false, err
	}
	want, err := byServer(others)
	if err != nil {
		return false, err
	}
	for server, n := range want {
		if latest[server] < n {
			return false, nil
		}
	}
	return true, nil
}

// byServer returns the number of each server's last transaction in a state of MariaDB's binary log.
func byServer(state string) (map[int]int, error) {
	latest := map[int]int{}
	for gtid := range strings.SplitSeq(state, ",") {
		var domain, server, n int
		if _, err := fmt.Sscanf(strings.TrimSpace(gtid), "%d-%d-%d", &domain, &server, &n); err != nil && state != "" {
			return nil, fmt.Errorf("the state of the binary log is %q: %w", state, err)
		}
		latest[server] = n
	}
	return latest, nil
}

// replica returns the statement that does verb to the replication.
func (m *MySQL) replica(verb string) string {
	if origins[m.Kind].maria {
		return strings.Replace(verb+" SLAVE", "RESET SLAVE", "RESET SLAVE ALL", 1)
	}
	return strings.Replace(verb+" REPLICA", "RESET REPLICA", "RESET REPLICA ALL", 1)
}

// position returns the current end of the binary log.
func (m *MySQL) position(ctx context.Context) (file, at string, err error) {
	statement := "SHOW BINARY LOG STATUS"
	if origins[m.Kind].maria {
		statement = "SHOW MASTER STATUS"
	}
	row, err := m.row(ctx, statement)
	if err != nil {
		return "", "", err
	}
	return row[0], row[1], nil
}
