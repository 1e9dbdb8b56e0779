package clients

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestRubySQL checks jobs that a Ruby program inserts on its own connection and transaction, on
// each engine with a driver.
func TestRubySQL(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		s := kit.NewSite(t)
		rubySQL(t, s, kit.Msg{"engine": "sqlite", "file": s.File()})
	})
	t.Run("postgres", func(t *testing.T) {
		s, p := kit.NewPostgresSite(t)
		rubySQL(t, s, kit.Msg{"engine": "postgres", "url": p.URL})
	})
	kit.OnMySQL(t, []testserver.Kind{testserver.MariaDB1011}, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		rubySQL(t, s, kit.Msg{"engine": "mysql", "config": kit.Msg{
			"socket": p.Socket, "username": p.User, "password": p.Password, "database": p.Name,
		}})
	})
}

func rubySQL(t *testing.T, s *kit.Site, database kit.Msg) {
	t.Helper()
	config, err := json.Marshal(database)
	if err != nil {
		t.Fatal(err)
	}
	sc := s.Start("a")
	cmd := exec.CommandContext(t.Context(), "ruby", "-I", clientlib.RubyPackage+"/lib", "testdata/sql.rb")
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket, "DATABASE="+string(config))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
