package clients

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
)

// checkPythonSQL runs qsidecar.sql with a real driver, a database, and a sidecar that finds the
// inserted jobs.
func checkPythonSQL(t *testing.T, s *kit.Site, python, engine, where string) {
	t.Helper()
	cmd := exec.Command(python, filepath.Join(clientlib.PythonPackage, "tests", "sql_check.py"), engine, where)
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+s.Start("a").Socket, "PYTHONPATH="+clientlib.PythonPackage)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestPythonInsert checks jobs that qsidecar.sql inserts. PostgreSQL is part of TestPythonPostgres.
func TestPythonInsert(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		s := kit.NewSite(t)
		checkPythonSQL(t, s, clientlib.PythonEnv(t, clientlib.PythonPackage), "sqlite", s.File())
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		m, err := testserver.StartMySQL(t.Context(), testserver.MySQL97, testserver.Options{})
		if errors.Is(err, testserver.ErrUnavailable) {
			kit.Figure(t, "NOT TESTED on MySQL, which could not be had")
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		})
		s := kit.NewSite(t)
		database := m.Database(t)
		s.URL = m.URL(database)
		c := m.Config(database) // through the socket, where the driver needs no cryptography for a password
		where, err := json.Marshal(map[string]string{
			"unix_socket": c.Addr, "user": c.User, "password": c.Passwd, "database": database, "charset": "utf8mb4",
		})
		if err != nil {
			t.Fatal(err)
		}
		checkPythonSQL(t, s, clientlib.PythonEnv(t, pythonenv.Tools...), "mysql", string(where))
	})
}
