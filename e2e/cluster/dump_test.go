package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// chains is how many jobs a load works on. Each ack enqueues the job's successor, so their number never changes.
const chains = 8

// load works on chains through a sidecar until stop is called.
func load(t *testing.T, sc *kit.Sidecar) (stop func()) {
	sc.Dial().Enqueue("chain", chains)
	w, err := kit.DialWire(sc.Socket)
	if err != nil {
		t.Fatal(err)
	}
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer w.Close()
		for {
			select {
			case <-ended:
				return
			default:
			}
			if err := advance(w); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	return func() { close(ended); <-stopped }
}

// advance claims two jobs and acks them.
func advance(w *kit.Wire) error {
	r, err := w.Call(kit.Msg{"op": "claim", "queue": "chain", "max": 2})
	if err != nil || r.Error != nil {
		return failure(r, err)
	}
	for _, job := range r.Jobs {
		if r, err = w.Call(kit.Msg{"op": "ack", "lease": job.Lease, "enqueue": []kit.Msg{{"queue": "chain"}}}); err != nil || r.Error != nil {
			return failure(r, err)
		}
	}
	return nil
}

func failure(r *kit.Reply, err error) error {
	if err != nil {
		return err
	}
	return r.Error
}

// restoreDump runs restore with a dump that is taken under load. The sidecars then use another database, into which create loads it.
func restoreDump(t *testing.T, s *kit.Site, dump func() ([]byte, error), create func(dump []byte) (url string, err error), count func(url string) string) {
	var taken []byte
	names := []string{"early", "late", "load"}
	restore(t, s, func() {
		stop := load(t, s.Start("load"))
		defer stop()
		var err error
		if taken, err = dump(); err != nil {
			t.Fatal(err)
		}
	}, func() {
		url, err := create(taken)
		if err != nil {
			t.Fatal(err)
		}
		if n := count(url); n != fmt.Sprint(chains) {
			t.Errorf("the dump has %s jobs of the load, want %d", n, chains)
		}
		s.URL = url
		for _, name := range names {
			sc := s.Sidecar(name)
			if out := kit.RunCLI(t, s.Dir, nil, "reload", "--socket", sc.Socket); out.Code != 0 {
				t.Fatalf("reload: %s%s", out.Stdout, out.Stderr)
			}
		}
	})
}

const countChains = "SELECT CAST(COUNT(*) AS CHAR(10)) FROM qsidecar_jobs WHERE queue = 'chain'"

// TestDumpPostgres moves to a server of a newer version, as pg_dump and pg_restore do.
func TestDumpPostgres(t *testing.T) {
	old, err := testserver.StartPostgres(t.Context(), "13", testserver.Options{Own: true, Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := old.Stop(); err != nil {
			t.Error(err)
		}
	})
	s, p := kit.NewPostgresSite(t)
	s.URL = old.Admin()
	c := postgresClient
	restoreDump(t, s, func() ([]byte, error) {
		return c.run(testwait.Context(t), c.dump, nil, "--format=custom", "--dbname="+old.Admin())
	},
		func(dump []byte) (string, error) {
			_, err := c.run(testwait.Context(t), c.load, dump, "--exit-on-error", "--no-owner", "--dbname="+p.URL)
			return p.URL, err
		},
		func(url string) string {
			return strings.TrimSpace(p.Query(url, strings.Replace(countChains, "FROM ", "FROM qsidecar.", 1))[0])
		})
}

func TestDumpMySQL(t *testing.T) {
	kit.OnMySQL(t, kit.SkipLockedKinds, func(t *testing.T, s *kit.Site, p *databases.MySQL) {
		c, dump := mysqlClients[p.Kind], append(login(p), "--single-transaction")
		if p.Kind == testserver.MySQL97 {
			dump = append(dump, "--set-gtid-purged=OFF")
		}
		restoreDump(t, s, func() ([]byte, error) { return c.run(testwait.Context(t), c.dump, nil, append(dump, p.Name)...) },
			func(dump []byte) (string, error) {
				if err := p.Exec(t.Context(), "CREATE DATABASE restored"); err != nil {
					return "", err
				}
				_, err := c.run(testwait.Context(t), c.load, dump, append(login(p), "restored")...)
				return p.URL("restored"), err
			},
			func(string) string { return p.Query(strings.Replace(countChains, "FROM ", "FROM restored.", 1))[0] })
	})
}
