package deploy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// drainDefault is the default of the config's drain_timeout.
const drainDefault = 30 * time.Second

// TestCompose runs the sidecar and the worker of each compose file on a real server, with the
// file's commands, environment, users and mounts. It does not run the databases' images. SQL Server
// is not available here.
func TestCompose(t *testing.T) {
	t.Parallel()
	var ran []string
	for _, database := range []string{"sqlite", "postgres", "mariadb", "mysql"} {
		t.Run(database, func(t *testing.T) {
			var at string
			switch database {
			case "postgres":
				at = startPostgres(t, "db", "app_sidecar", "app").at
			case "mariadb":
				at = startMySQL(t, testserver.MariaDB1011)
			case "mysql":
				at = startMySQL(t, testserver.MySQL97)
				if at == "" {
					return
				}
			}
			runCompose(t, loadCompose(t, database), at)
			ran = append(ran, database)
		})
	}
	ranAsRoot(t, "compose files", "sidecar and worker of "+strings.Join(ran, ", "))
}

// startMySQL starts a server at the usual port of the address that it returns, with the user that
// the databases' images create. It returns "" if MySQL is unavailable.
func startMySQL(t *testing.T, kind testserver.Kind) (at string) {
	t.Helper()
	m, err := testserver.StartMySQL(t.Context(), kind, testserver.Options{})
	if errors.Is(err, testserver.ErrUnavailable) {
		if err := local.Note("the compose file of MySQL ran on none: " + err.Error()); err != nil {
			t.Error(err)
		}
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Exec(t.Context(), "CREATE DATABASE app",
		fmt.Sprintf("CREATE USER app_sidecar IDENTIFIED BY '%s'", strings.ReplaceAll(password, "'", "''")),
		"GRANT ALL ON app.* TO app_sidecar"); err != nil {
		t.Fatal(err)
	}
	at = address()
	forward(t, net.JoinHostPort(at, "3306"), net.JoinHostPort(m.Host, m.Port))
	return at
}

// forward forwards connections.
func forward(t *testing.T, at, to string) {
	t.Helper()
	ln, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // the end of one side ends the other
		_, _ = to.Close(), from.Close()
	}
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return // closed
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			go pass(near, far)
			go pass(far, near)
		}
	}()
}

// withAdminAt copies a folder with a config. The sidecar of the copy serves metrics only at an
// address of this test, because the containers share the network of the host.
func withAdminAt(t *testing.T, dir, at string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	to := folder(t)
	put(t, to, "config.yaml", strings.Replace(string(text), "0.0.0.0:9464", at+":9464", 1), 0o644)
	return to
}

// runCompose runs the sidecar until its healthcheck passes, and the worker beside it.
func runCompose(t *testing.T, p *types.Project, at string) {
	t.Helper()
	img := theImage(t)
	volumes := map[string]mount{}
	service := func(name string, img *image) container {
		s := p.Services[name]
		c := img.container(s.Command...)
		if s.User != "" {
			c.user = s.User
		}
		c.groups = s.GroupAdd
		c.env = slices.Clone(c.env)
		for key, value := range s.Environment {
			c.env = append(c.env, key+"="+*value)
		}
		c.mounts = []mount{hosts(t, map[string]string{"db": at})}
		for _, secret := range s.Secrets {
			if want := filepath.Join(p.WorkingDir, "secrets", secret.Source); p.Secrets[secret.Source].File != want {
				t.Errorf("the secret %s is in %s, and the docs say %s", secret.Source, p.Secrets[secret.Source].File, want)
			}
			c.mounts = append(c.mounts, mount{from: write(t, secret.Source, password+"\n", 0o644), to: "/run/secrets/" + secret.Source, readOnly: true})
		}
		for _, v := range s.Volumes {
			m := mount{from: v.Source, to: v.Target, readOnly: v.ReadOnly}
			if v.Type == types.VolumeTypeVolume {
				if _, ok := volumes[v.Source]; !ok {
					volumes[v.Source] = volume(t, theImage(t), v.Target)
				}
				m.from = volumes[v.Source].from
			} else if v.Target == "/etc/qsidecar" {
				m.from = withAdminAt(t, v.Source, at)
			}
			c.mounts = append(c.mounts, m)
		}
		return c
	}
	sidecar := service("qsidecar", img).start(t)
	testwait.Until(t, "the healthcheck passes", func() bool {
		if sidecar.gone() {
			t.Fatalf("the sidecar ended with %d:\n%s", sidecar.wait(), sidecar.out.String())
		}
		code, _ := sidecar.exec(p.Services["qsidecar"].HealthCheck.Test[1:]...)
		return code == 0
	})
	if code, out := sidecar.exec("qsidecar", "enqueue", "mail", "hello"); code != 0 {
		t.Fatalf("enqueue: %d, %s", code, out)
	}
	worker, line := service("worker", theApp(t)).startWithInput(t)
	testwait.Until(t, "the worker has the job", func() bool { return strings.Contains(worker.out.String(), "working on: hello") })
	line()
	if code := worker.wait(); code != 0 {
		t.Errorf("the worker ended with %d: %s", code, worker.out.String())
	}
	sidecar.signal(syscall.SIGTERM)
	if code := sidecar.wait(); code != 0 {
		t.Errorf("the sidecar ended with %d", code)
	}
}
