package mysql

import (
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/table"
)

// statements holds the SQL that does not depend on arguments. SQL that lists rows is written where it is
// used.
//
// Each statement follows a rule: its cost must follow from its text, whatever statistics the server has
// about the tables. A statement reaches qsidecar_jobs by id = or id IN (…). Otherwise it names the index,
// one `segment`, the order of the index and a LIMIT. It never joins qsidecar_jobs.
type statements struct {
	clock string // the SQL expression for the present time
	skip  string // follows FOR UPDATE: skip rows that other transactions have locked

	begin, rollback                        string
	mark, markIf, marked, committed, seal  string
	join, renew, leave, lastWatcher, peers string
	claimedBy                              string
}

// nextNumber is the end of a statement that stores the number of a commit. The stored number must be the previous one.
const nextNumber = ` ON DUPLICATE KEY UPDATE number = IF(number = VALUES(number) - 1, VALUES(number), -1), at = {now}`

func render(clock string, v session.Server) *statements {
	replace := strings.NewReplacer("{now}", clock)
	inTime := strconv.FormatFloat(backends.InTime, 'g', -1, 64)
	r := func(sql string) string { return replace.Replace(strings.TrimSpace(sql)) }
	s := &statements{
		clock: clock,
		begin: "START TRANSACTION", rollback: "ROLLBACK",

		mark: r(`INSERT INTO qsidecar_commits (handle, number, at) VALUES (?, ?, {now})` + nextNumber),
		// If the previous number is another one, or the previous statement changed another number of rows, the
		// new number is -1. It is out of range, so the transaction fails.
		markIf: r(`INSERT INTO qsidecar_commits (handle, number, at) VALUES (?, IF(ROW_COUNT() = ?, ?, -1), {now})` + nextNumber),
		marked: r(`SELECT number FROM qsidecar_commits WHERE handle = ? FOR UPDATE`),
		// The number must still be the one that was read. A missing row is inserted.
		seal: r(`INSERT INTO qsidecar_commits (handle, number, at) VALUES (?, ?, {now}) ON DUPLICATE KEY UPDATE number = IF(number = ?, VALUES(number), -1), at = {now}`),

		committed: `SELECT number FROM qsidecar_commits WHERE handle = ?`,

		join: r(`INSERT INTO qsidecar_sidecars (sidecar, name, heartbeats, expires_at, timeout_ms, stats_leader, version, leases)
VALUES (?, ?, 1, {now} + INTERVAL ? MICROSECOND, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE name = IF(dead OR has_left, name, VALUES(name)), heartbeats = IF(dead OR has_left, heartbeats, heartbeats + 1), expires_at = IF(dead OR has_left, expires_at, VALUES(expires_at)),
  timeout_ms = IF(dead OR has_left, timeout_ms, VALUES(timeout_ms)), stats_leader = IF(dead OR has_left, stats_leader, VALUES(stats_leader)),
  version = IF(dead OR has_left, version, VALUES(version)), leases = IF(dead OR has_left, leases, VALUES(leases))`),
		renew: r(`UPDATE qsidecar_sidecars SET name = ?, heartbeats = heartbeats + 1, expires_at = {now} + INTERVAL ? MICROSECOND,
  timeout_ms = ?, stats_leader = ?, version = ?, leases = ?
WHERE sidecar = ? AND NOT dead AND NOT has_left`),
		leave: r(`UPDATE qsidecar_sidecars SET name = ?, heartbeats = heartbeats + 1, expires_at = {now} + INTERVAL ? MICROSECOND,
  timeout_ms = ?, stats_leader = ?, version = ?, leases = ?, has_left = 1
WHERE sidecar = ? AND NOT dead`),
		// The last watcher, if enough sidecars watch another one, and the rows up to it.
		lastWatcher: r(`SET @qsidecar_last = (SELECT sidecar FROM qsidecar_sidecars WHERE sidecar < ? AND NOT dead AND NOT has_left
AND TIMESTAMPDIFF(MICROSECOND, {now}, expires_at) BETWEEN ` + inTime + ` * 1000 * timeout_ms AND 1000 * (timeout_ms + 1)
ORDER BY sidecar LIMIT 1 OFFSET ` + strconv.Itoa(backends.Watchers-1) + `)`),
		peers: r(`SELECT sidecar, heartbeats, TIMESTAMPDIFF(MICROSECOND, {now}, expires_at), dead, has_left, @qsidecar_last IS NOT NULL,
  COALESCE(timeout_ms, -1), stats_leader, name, COALESCE(version, ''), COALESCE(leases, -1)
FROM qsidecar_sidecars WHERE sidecar <= IF(?, 9223372036854775807, COALESCE(@qsidecar_last, 9223372036854775807)) OR sidecar = ? ORDER BY sidecar`),

		claimedBy: r(`SELECT id, token_sidecar, token_number, queue, lease_ms IS NOT NULL FROM ` + table.Jobs + `
WHERE segment = ? AND id > ? ORDER BY id LIMIT ?`),
	}
	if v.Galera {
		s.begin, s.rollback = galeraBegin, "ROLLBACK;\n"+galeraEnd
	}
	if v.SkipLocked {
		s.skip = " SKIP LOCKED"
	}
	return s
}
