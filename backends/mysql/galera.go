package mysql

import (
	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// A node of a Galera cluster can abort a transaction because another node committed a change of the same
// rows first. If that happens between two statements of one packet, MariaDB doesn't report it (MDEV-35446,
// seen on 10.11): the later statements commit by themselves, and COMMIT succeeds.
//
// So a transaction runs with autocommit = 0 and starts with a savepoint. The end of its last packet releases
// the savepoint, which fails if the transaction was aborted. After COMMIT the same packet reads the number of
// the commit, which shows an abort between these two. This needs no further round trip.

const codeNoSavepoint = 1305

// errAborted is the error that the server didn't report.
var errAborted = &mysql.MySQLError{Number: codeDeadlock, SQLState: [5]byte{'4', '0', '0', '0', '1'}, Message: "another node of the cluster changed the same rows first"}

// addGaleraCommit queues COMMIT with its checks.
func (t *tx) addGaleraCommit() {
	if !t.wrote {
		t.Add(t.s.sql.commit)
		t.Add(t.s.sql.endGalera)
		return
	}
	l := t.c.Counter
	t.Add(t.s.sql.releaseGalera)
	t.Add(t.s.sql.commit)
	t.Each(func(*session.Result) { t.committed = true }, t.s.sql.afterCommit)
	t.Query(func(r *session.Result) error {
		ok, err := r.Next()
		if err == nil && (!ok || uint64(r.Int(0)) != l.Number+1) {
			t.committed, err = false, errAborted
		}
		return err
	}, t.s.sql.committed, l.Handle)
	t.Add(t.s.sql.endGalera)
}
