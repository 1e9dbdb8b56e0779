package mysql

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// lookIsolation: the server's default does not matter, and people ask.
func (e *examination) lookIsolation(context.Context) error {
	level := e.vars["transaction_isolation"]
	if level == "" {
		level = e.vars["tx_isolation"]
	}
	e.AddInfo("isolation", fmt.Sprintf("the default is %s; the sidecar's sessions are READ-COMMITTED", level))
	return nil
}

// lookBinlog: with statements in it, replicas do not see what was claimed.
func (e *examination) lookBinlog(context.Context) error {
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

// lookDurability: an answer is given when the server says committed. What does
// that mean here?
func (e *examination) lookDurability(context.Context) error {
	before := len(e.Findings)
	if v := e.vars["innodb_flush_log_at_trx_commit"]; v != "1" {
		e.AddWarning("durability", fmt.Sprintf("innodb_flush_log_at_trx_commit is %s: a crash of the server loses the jobs and acks of its last second, which were answered already", v),
			"SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration")
	}
	if v := e.vars["sync_binlog"]; e.on("log_bin") && v != "1" {
		e.AddWarning("durability", fmt.Sprintf("sync_binlog is %s: after a crash of the server its replicas may lack, or have, other jobs than it has", v),
			"SET GLOBAL sync_binlog = 1, and in the server's configuration")
	}
	if v, ok := e.vars["innodb_doublewrite"]; ok && strings.EqualFold(v, "OFF") {
		e.AddWarning("durability", "innodb_doublewrite is off: a crash of the server's machine may leave torn pages", "leave it off only where the file system writes pages whole")
	}
	if strings.EqualFold(e.vars["innodb_flush_method"], "nosync") {
		e.AddWarning("durability", "innodb_flush_method is nosync: nothing is made durable", "set another one in the server's configuration")
	}
	if len(e.Findings) == before {
		e.AddInfo("durability", "each commit is on disk before it is answered")
	}
	return nil
}

// lookPackets: a payload travels in one.
func (e *examination) lookPackets(context.Context) error {
	need := 2*e.o.MaxPayload + packetRoom
	text := fmt.Sprintf("max_allowed_packet is %d bytes", e.server.packet)
	if e.server.packet >= need {
		e.AddInfo("packets", text)
		return nil
	}
	e.AddWarning("packets", fmt.Sprintf("%s: a job with a payload of more than %d bytes may be refused, though %d are allowed", text, (e.server.packet-packetRoom)/2, e.o.MaxPayload),
		fmt.Sprintf("SET GLOBAL max_allowed_packet = %d, and in the server's configuration; or lower max_frame", (need+1<<20-1)>>20<<20))
	return nil
}

// lookTransactions: an old one keeps what is deleted from being purged.
func (e *examination) lookTransactions(ctx context.Context) error {
	rows, err := e.rows(ctx, "SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started LIMIT 1")
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
	seconds, err := strconv.Atoi(rows[0][1])
	if err != nil {
		return fmt.Errorf("%w: the age of a transaction: %w", errOwn, err)
	}
	age := time.Duration(seconds) * time.Second
	if age < oldSnapshot {
		e.AddInfo("transactions", fmt.Sprintf("the oldest transaction is %v old", age))
		return nil
	}
	e.AddWarning("transactions", fmt.Sprintf("connection %s has had a transaction open for %v: no job that was settled since can be purged, and the table grows", rows[0][0], age),
		fmt.Sprintf("end it, with KILL %s if need be", rows[0][0]))
	return nil
}

// lookConnections: is there room for all that a sidecar may open?
func (e *examination) lookConnections(ctx context.Context) error {
	rows, err := e.rows(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")
	if err != nil || len(rows) != 1 {
		return err
	}
	open, err1 := strconv.Atoi(rows[0][1])
	most, err2 := strconv.Atoi(e.vars["max_connections"])
	if err1 != nil || err2 != nil {
		return nil
	}
	text := fmt.Sprintf("%d of %d connections of the server are open, and a sidecar has up to %d", open, most, e.o.MaxConnections)
	if open+e.o.MaxConnections > most {
		e.AddWarning("connections", text, "raise the server's max_connections, or lower the database's in the config")
		return nil
	}
	e.AddInfo("connections", text)
	return nil
}

// lookClock: leases end by the server's clock, and people read times by theirs.
func (e *examination) lookClock(ctx context.Context) error {
	began := time.Now()
	rows, err := e.rows(ctx, "SELECT UTC_TIMESTAMP(6)")
	if err != nil {
		return err
	}
	took := time.Since(began)
	apart := parseInstant([]byte(rows[0][0])).time().Sub(began.Add(took / 2))
	if apart.Abs() < clockApart+took {
		e.AddInfo("clock", fmt.Sprintf("the server's clock and this host's differ by %v", apart.Abs().Round(time.Millisecond)))
		return nil
	}
	e.AddWarning("clock", fmt.Sprintf("the server's clock is %v %s of this host's", apart.Abs().Round(time.Millisecond), map[bool]string{true: "ahead", false: "behind"}[apart > 0]),
		"have both keep time by NTP: times in a run_at are the server's")
	return nil
}

// lookDisk has MySQL write a temporary table of more than a megabyte beside its data, and drop it
// again: a disk that is full is seen by nothing else. MariaDB has its temporary tables elsewhere.
func (e *examination) lookDisk(ctx context.Context) error {
	if e.server.maria {
		return nil
	}
	if err := e.conn.exec(ctx, "SET SESSION tmp_table_size = 1024, SESSION cte_max_recursion_depth = 1000"); err != nil {
		return err
	}
	_, err := e.rows(ctx, "WITH RECURSIVE n AS (SELECT 1 AS i, CAST(REPEAT('x', 3000) AS CHAR(3000)) AS t UNION ALL SELECT i + 1, t FROM n WHERE i < 900) SELECT COUNT(*) FROM n")
	if isCode(err, codesFull...) {
		e.AddError("disk", fmt.Sprintf("the disk of the database is full: %v", err), "make room on the server: what does not fit is refused, and soon all writes wait")
		return nil
	}
	return err
}
