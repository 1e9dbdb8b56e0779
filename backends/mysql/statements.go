package mysql

import "strings"

// statements are those that always read the same. The rest is written where it is
// used, because it lists rows.
//
// A rule for each of them: what it costs must follow from its text, whatever the
// server believes about the tables. So qsidecar_jobs is reached by id = or id IN
// (…), or through the index that is named, by a lane and in the index's order with
// a LIMIT, and never joined.
type statements struct {
	clock string // the present instant
	skip  string // after FOR UPDATE: leave alone what others have locked

	joinLine, mark, markIf, marked, seal string
	join, renew, leave, peers            string
	held                                 string
}

// jobs is the table, bound to its index.
const jobs = `qsidecar_jobs FORCE INDEX (qsidecar_lanes)`

// byID is the table, bound to its primary key, for statements that lock rows by a list
// of ids. Without it the server scans a table that is small compared with the list, and
// waits for the rows that other programs have inserted and not committed.
const (
	byID       = `qsidecar_jobs FORCE INDEX (PRIMARY)`
	deleteByID = `DELETE FROM j USING qsidecar_jobs AS j FORCE INDEX (PRIMARY)`
)

// laneRange is the condition that a row is in a lane (given twice), for statements
// that begin in its midst. Written as lane = ? it would leave the server a choice:
// to begin there, or to look the lane up and walk all of it, over each entry that
// cannot be purged yet. Under a held snapshot MariaDB's statistics have it choose
// the latter. inLanes is the order of the index.
const (
	laneRange = `lane >= ? AND lane <= ?`
	inLanes   = `lane, urgency, place, id`
)

func render(clock string, v server) *statements {
	r := func(sql string) string { return strings.ReplaceAll(strings.TrimSpace(sql), "{now}", clock) }
	s := &statements{
		clock: clock,

		joinLine: r(`INSERT INTO qsidecar_commits (handle, number, at) VALUES (?, ?, {now}) ON DUPLICATE KEY UPDATE at = {now}`),
		mark:     r(`UPDATE qsidecar_commits SET number = IF(number = ?, ?, -1), at = {now} WHERE handle = ?`),
		// Where the number is another one, or the statement before changed more rows or
		// fewer, the new number is none, and the transaction fails.
		markIf: r(`UPDATE qsidecar_commits SET number = IF(ROW_COUNT() = ? AND number = ?, ?, -1), at = {now} WHERE handle = ?`),
		marked: r(`SELECT number FROM qsidecar_commits WHERE handle = ? FOR UPDATE`),
		seal:   r(`UPDATE qsidecar_commits SET number = ? WHERE handle = ?`),

		join: r(`INSERT INTO qsidecar_hosts (host, name, beats, expires_at) VALUES (?, ?, 1, {now} + INTERVAL ? MICROSECOND)
ON DUPLICATE KEY UPDATE name = IF(dead OR has_left, name, VALUES(name)), beats = IF(dead OR has_left, beats, beats + 1), expires_at = IF(dead OR has_left, expires_at, VALUES(expires_at))`),
		renew: r(`UPDATE qsidecar_hosts SET name = ?, beats = beats + 1, expires_at = {now} + INTERVAL ? MICROSECOND
WHERE host = ? AND NOT dead AND NOT has_left`),
		leave: r(`UPDATE qsidecar_hosts SET name = ?, beats = beats + 1, expires_at = {now} + INTERVAL ? MICROSECOND, has_left = 1
WHERE host = ? AND NOT dead`),
		peers: r(`SELECT host, beats, TIMESTAMPDIFF(MICROSECOND, {now}, expires_at), dead, has_left, name FROM qsidecar_hosts ORDER BY host`),

		held: r(`SELECT id, token_host, token_number, queue, lease_ms IS NOT NULL FROM ` + jobs + `
WHERE lane = ? AND id > ? ORDER BY id LIMIT ?`),
	}
	if v.skips {
		s.skip = " SKIP LOCKED"
	}
	return s
}
