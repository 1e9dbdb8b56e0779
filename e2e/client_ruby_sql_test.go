package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestRubySQL: jobs that a Ruby program inserts by its own connection, in its own
// transaction, on each engine that there is a driver for.
func TestRubySQL(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		s := newSite(t)
		rubySQL(t, s, msg{"engine": "sqlite", "file": s.file()})
	})
	t.Run("postgres", func(t *testing.T) {
		s, p := newPostgresSite(t)
		rubySQL(t, s, msg{"engine": "postgres", "url": p.url})
	})
	onMySQL(t, []testserver.Kind{testserver.MariaDB1011}, func(t *testing.T, s *site, p *mysqlServer) {
		rubySQL(t, s, msg{"engine": "mysql", "config": msg{
			"socket": p.Socket, "username": p.User, "password": p.Password, "database": p.database,
		}})
	})
}

func rubySQL(t *testing.T, s *site, database msg) {
	t.Helper()
	config, err := json.Marshal(database)
	if err != nil {
		t.Fatal(err)
	}
	sc := s.started("a")
	cmd := exec.CommandContext(t.Context(), "ruby", "-I", rubyPackage+"/lib", "testdata/ruby/sql.rb")
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.socket, "DATABASE="+string(config))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
