package diagnose

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/checks"
	"github.com/qsidecar/qsidecar/backends/mysql"
)

// checkIsolation reports the server's default, which does not matter to a sidecar.
func (e *examination) checkIsolation(context.Context) error {
	level := e.vars["transaction_isolation"]
	if level == "" {
		level = e.vars["tx_isolation"]
	}
	e.AddInfo("isolation", fmt.Sprintf("the default is %s; the sidecar's sessions are READ-COMMITTED", level))
	return nil
}

// checkBinlog checks the format of the binary log: replicas can't repeat the statements of claims.
func (e *examination) checkBinlog(context.Context) error {
	switch format := e.vars["binlog_format"]; {
	case !e.on("log_bin"):
		e.AddInfo("binlog", "the binary log is off")
	case format == "STATEMENT":
		e.AddError("binlog", "binlog_format is STATEMENT: which rows SKIP LOCKED finds cannot be repeated by a replica, and the server refuses writes at READ-COMMITTED",
			"SET GLOBAL binlog_format = 'ROW', and in the server's configuration")
	default:
		e.AddInfo("binlog", fmt.Sprintf("binlog_format is %s", format))
	}
	return nil
}

// checkDurability checks whether commits survive a crash of this server, because a sidecar answers when
// the server has committed.
func (e *examination) checkDurability(context.Context) error {
	before := len(e.Findings)
	if v := e.vars["innodb_flush_log_at_trx_commit"]; v != "1" {
		e.AddWarning("durability", fmt.Sprintf("innodb_flush_log_at_trx_commit is %s: a crash of the server loses the jobs and acks of its last second, though the sidecar has answered them", v),
			"SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration")
	}
	if v := e.vars["sync_binlog"]; e.on("log_bin") && v != "1" {
		e.AddWarning("durability", fmt.Sprintf("sync_binlog is %s: after a crash of the server its replicas can lack jobs that it has, or have others", v),
			"SET GLOBAL sync_binlog = 1, and in the server's configuration")
	}
	if v, ok := e.vars["innodb_doublewrite"]; ok && strings.EqualFold(v, "OFF") {
		e.AddWarning("durability", "innodb_doublewrite is off: a crash of the server's machine can leave torn pages", "leave it off only if the file system writes whole pages")
	}
	if strings.EqualFold(e.vars["innodb_flush_method"], "nosync") {
		e.AddWarning("durability", "innodb_flush_method is nosync: no commit is durable", "set another one in the server's configuration")
	}
	if len(e.Findings) == before {
		e.AddInfo("durability", "each commit is on disk before it is answered")
	}
	return nil
}

// checkPackets checks that the largest payload fits into a packet.
func (e *examination) checkPackets(context.Context) error {
	need := 2*e.MaxPayload + e.PacketReserve
	text := fmt.Sprintf("max_allowed_packet is %d bytes", e.MaxPacket)
	if e.MaxPacket >= need {
		e.AddInfo("packets", text)
		return nil
	}
	e.AddWarning("packets", fmt.Sprintf("%s: a job with a payload of more than %d bytes can be refused, though %d are allowed", text, (e.MaxPacket-e.PacketReserve)/2, e.MaxPayload),
		fmt.Sprintf("SET GLOBAL max_allowed_packet = %d, and in the server's configuration; or lower max_frame", (need+1<<20-1)>>20<<20))
	return nil
}

// checkTransactions finds old transactions. While one is open, the server can't purge what was deleted
// since.
func (e *examination) checkTransactions(ctx context.Context) error {
	rows, err := e.session.Rows(ctx, "SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started LIMIT 1")
	if isCode(err, 1227) {
		e.AddInfo("transactions", fmt.Sprintf("user %s does not see the server's transactions: for this check it would need the right PROCESS", e.user))
		return nil
	}
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		e.AddInfo("transactions", "no other transaction is open")
		return nil
	}
	seconds, _ := strconv.Atoi(rows[0][1].String)
	age := time.Duration(seconds) * time.Second
	if age < checks.OldTransaction {
		e.AddInfo("transactions", fmt.Sprintf("the oldest transaction is %v old", age))
		return nil
	}
	e.AddWarning("transactions", fmt.Sprintf("connection %s has had a transaction open for %v: no job that was settled since can be purged, and the table grows", rows[0][0].String, age),
		fmt.Sprintf("end it, with KILL %s if need be", rows[0][0].String))
	return nil
}

// checkConnections checks that the server has enough free connections for a pool.
func (e *examination) checkConnections(ctx context.Context) error {
	rows, err := e.session.Rows(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")
	if err != nil || len(rows) != 1 {
		return err
	}
	open, err1 := strconv.Atoi(rows[0][1].String)
	most, err2 := strconv.Atoi(e.vars["max_connections"])
	if err1 != nil || err2 != nil {
		return nil
	}
	text := fmt.Sprintf("%d of %d connections of the server are open, and a sidecar has up to %d", open, most, e.MaxConnections)
	if open+e.MaxConnections > most {
		e.AddWarning("connections", text, "raise the server's max_connections, or lower the database's in the config")
		return nil
	}
	e.AddInfo("connections", text)
	return nil
}

// checkClock compares the server's clock with this host's.
func (e *examination) checkClock(ctx context.Context) error {
	ahead, margin, err := e.measureClock(ctx, e.session)
	if err == nil {
		e.CompareClocks(ahead, margin, checks.ClockOffset)
	}
	return err
}

// measureClock returns how far a server's clock is ahead of this host's, exact to ± margin.
func (e *examination) measureClock(ctx context.Context, s mysql.Session) (ahead, margin time.Duration, err error) {
	began := time.Now()
	rows, err := s.Rows(ctx, "SELECT UTC_TIMESTAMP(6)")
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(began)
	server, err := time.Parse("2006-01-02 15:04:05.999999", rows[0][0].String)
	return server.Sub(began.Add(took / 2)), took, err
}

// checkDisk makes MySQL write and drop a temporary table of more than a megabyte next to its data, because
// no query reports a full disk. MariaDB keeps its temporary tables elsewhere, so checkDisk skips it.
func (e *examination) checkDisk(ctx context.Context) error {
	if e.MariaDB {
		return nil
	}
	if err := e.session.Exec(ctx, "SET SESSION tmp_table_size = 1024, SESSION cte_max_recursion_depth = 1000"); err != nil {
		return err
	}
	_, err := e.session.Rows(ctx, "WITH RECURSIVE n AS (SELECT 1 AS i, CAST(REPEAT('x', 3000) AS CHAR(3000)) AS t UNION ALL SELECT i + 1, t FROM n WHERE i < 900) SELECT COUNT(*) FROM n")
	if mysql.IsDiskFull(err) {
		e.AddError("disk", fmt.Sprintf("the disk of the database is full: %v", err), "free space on the server: it rejects writes that do not fit, and soon all writes wait")
		return nil
	}
	return err
}
