package crash

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// smallDisk creates a small file system for the data of the test's servers. It returns it and a
// directory on another disk that every user can write.
func smallDisk(t *testing.T, size string) (disk, other string) {
	t.Helper()
	for _, dir := range []*string{&disk, &other} {
		var err error
		if *dir, err = os.MkdirTemp("", "qsdisk"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(*dir); err != nil {
				t.Error(err)
			}
		})
		if err := os.Chmod(*dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=0777,size="+size); errors.Is(err, unix.EPERM) {
		t.Skip("a server's small disk is mounted by root alone")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", disk)
	t.Setenv(local.EnvMemory, "")
	return disk, other
}

// fullServer is a site on a server with a small disk. The sidecar's own files are on another disk.
type fullServer struct {
	*testing.T
	site          *kit.Site
	disk, filling string
}

func newFullServer(t *testing.T, start func(other string) *kit.Site) *fullServer {
	t.Helper()
	disk, other := smallDisk(t, "600m")
	f := &fullServer{T: t, disk: disk, filling: filepath.Join(disk, "filling"), site: start(other)}
	f.site.Dir = filepath.Join(other, "site")
	if err := os.Mkdir(f.site.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.site.SidecarTimeout = 5 * time.Minute // longer than this takes on a busy machine
	return f
}

// try fills the disk. New jobs get `unavailable`, other jobs are settled, and check reports it.
// After space is freed, everything works again.
func (f *fullServer) try() {
	f.Helper()
	a := f.site.Start("a")
	c := a.Dial()
	const jobs = 10
	c.Enqueue("q", jobs)
	var held []kit.Job
	for range jobs {
		held = append(held, c.ClaimOne("q"))
	}
	f.checks(a, 0, "")
	fill(f.T, f.filling)
	big := kit.Msg{"op": "enqueue", "queue": "big", "payload": strings.Repeat("x", 1<<20)}
	stored := 0
	r := c.Exchange(big)
	for ; r.Error == nil && stored < 100; r = c.Exchange(big) {
		stored++
	}
	if e := c.WantError("unavailable", "a job that the disk has no room for", r); !strings.Contains(e.Message, "No space left on device") && !strings.Contains(e.Message, "tablespace is full") {
		f.Errorf("a full disk is reported as %+v", e)
	}
	f.checks(a, 1, "error   disk: the disk of the database is full: ")

	producer := a.Dial()
	producer.Post(big, big)
	a.CaughtUp()
	for _, j := range held[:jobs-1] {
		if r := c.Exchange(kit.Msg{"op": "ack", "lease": j.Lease}); r.Error != nil {
			f.Errorf("an ack, while jobs are tried that the disk has no room for: %v", r.Error)
		}
	}
	for range 2 {
		producer.WantError("unavailable", "a job that the disk has no room for", producer.Next())
	}
	if err := os.Remove(f.filling); err != nil {
		f.Fatal(err)
	}
	testwait.Until(f, "it goes on when there is room", func() bool {
		if r = c.Exchange(big); r.Error == nil {
			stored++
		}
		return r.Error == nil
	})
	c.Must(kit.Msg{"op": "ack", "lease": held[jobs-1].Lease})
	if got := c.Stats("big"); got.Ready != stored || got.Total() != got.Ready {
		f.Errorf("the queue has %+v, want %d ready jobs", got, stored)
	}
	if got := c.Stats("q"); got.Total() != 0 {
		f.Errorf("the other queue has %+v, want nothing", got)
	}
	f.checks(a, 0, "")
	if err := local.RanAsRoot("servers with a full disk", f.Name()); err != nil {
		f.Fatal(err)
	}
}

func (f *fullServer) checks(a *kit.Sidecar, code int, says string) {
	f.Helper()
	if r := kit.RunCLI(f.T, f.site.Dir, nil, "check", "--config", a.ConfigFile); r.Code != code || !strings.Contains(r.Stdout, says) {
		f.Errorf("check ends with %d and prints\n%s%s, want %d and %q", r.Code, r.Stdout, r.Stderr, code, says)
	}
}

// TestServersFullDisk checks that a server with a full disk still accepts changes that need no
// space.
func TestServersFullDisk(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		newFullServer(t, func(string) *kit.Site {
			s, _ := kit.NewPostgresSite(t)
			return s
		}).try()
	})
	// Its binary log is on another disk: MySQL waits for space for it, and all commits wait too.
	t.Run("mysql", func(t *testing.T) {
		databases.OwnMySQL(t)
		newFullServer(t, func(other string) *kit.Site {
			p, err := databases.StartMySQL(t, testserver.MySQL97, testserver.Options{Durable: true, Settings: map[string]string{
				"log-bin": filepath.Join(other, "binlog"), "tmpdir": other,
			}})
			if errors.Is(err, testserver.ErrUnavailable) {
				t.Skip("NOT TESTED on MySQL, which could not be had")
			}
			if err != nil {
				t.Fatal(err)
			}
			s := kit.NewSite(t)
			s.URL = p.URL(p.Name)
			return s
		}).try()
	})
	// MariaDB exits if it has no space for a rollback. Nothing is lost by that.
	t.Run("mariadb", func(t *testing.T) {
		databases.OwnMySQL(t)
		var p *databases.MySQL
		f := newFullServer(t, func(other string) *kit.Site {
			var err error
			p, err = databases.StartMySQL(t, testserver.MariaDB1011, testserver.Options{Durable: true, Settings: map[string]string{"tmpdir": other}})
			if err != nil {
				t.Fatal(err)
			}
			s := kit.NewSite(t)
			s.URL = p.URL(p.Name)
			return s
		})
		a := f.site.Start("a")
		c := a.Dial()
		c.Enqueue("q", 5)
		held := c.ClaimOne("q")
		fill(t, f.filling)
		var producers []*kit.Conn
		for range 4 {
			producer := a.Dial()
			producers = append(producers, producer)
			producer.Post(kit.Msg{"op": "enqueue", "queue": "big", "payload": strings.Repeat("x", 1<<20)})
		}
		testwait.Until(t, "the disk is full", func() bool {
			return p.Exec(t.Context(), "DO 0") != nil || a.Events()["commit_failed"] > 0
		})
		c.Post(kit.Msg{"op": "ack", "lease": held.Lease})
		if err := os.Remove(f.filling); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Kill9(), p.Restart(testwait.Context(t))); err != nil {
			t.Fatal(err)
		}
		if r := c.Next(); r.Error != nil {
			t.Errorf("the ack of a job that was claimed before: %v", r.Error)
		}
		for range 4 {
			c.Must(kit.Msg{"op": "ack", "lease": c.ClaimOne("q").Lease})
		}
		if got := c.Stats("q"); got.Total() != 0 {
			t.Errorf("the queue has %+v, want nothing", got)
		}
		stored, unknown := 0, 0
		for _, producer := range producers {
			switch r := producer.Next(); {
			case r.Error == nil:
				stored++
			case r.Error.Code == "unknown_outcome":
				unknown++
			case r.Error.Code != "unavailable":
				t.Errorf("a full disk is reported as %v", r.Error)
			}
		}
		if got := c.Stats("big").Ready; got < stored || got > stored+unknown {
			t.Errorf("%d jobs are there, and %d were answered, %d more perhaps", got, stored, unknown)
		}
	})
}
