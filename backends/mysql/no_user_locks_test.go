package mysql

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// noUserLocks makes a server refuse GET_LOCK, as Percona XtraDB Cluster does in strict mode (1105) and some Galera nodes do
// (1235). It replaces the function's name in what is sent by the name of a function that fails. No such server was available.
type noUserLocks struct{ net.Conn }

func (n noUserLocks) Write(b []byte) (int, error) {
	return n.Conn.Write(bytes.ReplaceAll(b, []byte("GET_LOCK("), []byte("GET_L0CK(")))
}

func refuseLocks(t *testing.T, m *testserver.MySQL, name string, code int) Options {
	t.Helper()
	runSQL(t, connect(t, m, name), fmt.Sprintf(
		"CREATE FUNCTION GET_L0CK(name VARCHAR(255), seconds INT) RETURNS INT DETERMINISTIC NO SQL BEGIN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = %d; RETURN 0; END", code))
	return Options{URL: m.URL(name), wrap: func(c net.Conn) net.Conn { return noUserLocks{c} }}
}

// TestNoUserLocks: sidecars that start together create or update the tables once, and commits whose answers get lost are found out, on
// a server without user locks.
func TestNoUserLocks(t *testing.T) {
	everywhere(t, func(t *testing.T, m *testserver.MySQL) {
		fresh := m.Database(t)
		open(t, Options{URL: m.URL(fresh)})
		want := shape(t, m, fresh)
		for name, code := range map[string]int{m.Database(t): 1105, m.Database(t): 1235} {
			o := refuseLocks(t, m, name, code)
			var opened sync.WaitGroup
			for range 6 {
				opened.Go(func() {
					s, err := Open(t.Context(), o)
					if err != nil {
						t.Error(err)
						return
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			opened.Wait()
			if diff := cmp.Diff(want, shape(t, m, name)); diff != "" {
				t.Errorf("-with locks +without:\n%s", diff)
			}
			s := open(t, o)
			stored := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs")
			lose := func(c *session.Conn, before bool) {
				if !before {
					s.fault.Store(nil)
					c.Bad = true
					c.Wire.Close()
				}
			}
			s.fault.Store(&lose)
			if err := enqueue(t, s); err != nil {
				t.Errorf("the commit happened, and the answer is %v", err)
			}
			if n := numberOf(t, m, name, "SELECT COUNT(*) FROM qsidecar_jobs") - stored; n != 1 {
				t.Errorf("%d jobs are stored, want 1", n)
			}
		}
	})
}
