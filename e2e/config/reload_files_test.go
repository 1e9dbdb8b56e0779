package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// queues waits until the sidecar serves one queue and not the other.
func queues(sc *kit.Sidecar, c *kit.Conn, has, not string) {
	sc.T.Helper()
	testwait.Until(sc.T, "the queue "+has+" is there, and not "+not, func() bool {
		return c.Exchange(kit.Msg{"op": "stats", "queue": has}).Error == nil && c.Exchange(kit.Msg{"op": "stats", "queue": not}).Error != nil
	})
}

// TestReloadWithoutEvents checks a config that is written through mmap(2), for which the system
// sends no event, like changes by another host on a network file system. The sidecar finds the
// change and closes no connection.
func TestReloadWithoutEvents(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  aaaa: {}\n"
	sc := s.Sidecar("a")
	alone := filepath.Join(s.Dir, "alone", "a.yaml") // a directory without other events
	if err := errors.Join(os.Mkdir(filepath.Dir(alone), 0o755), os.Rename(sc.ConfigFile, alone)); err != nil {
		t.Fatal(err)
	}
	sc.ConfigFile = alone
	file, err := os.OpenFile(sc.ConfigFile, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() // later, because closing it can be an event
	text, err := os.ReadFile(sc.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	sc.Start()
	c := sc.Dial()
	queues(sc, c, "aaaa", "bbbb")
	page, err := syscall.Mmap(int(file.Fd()), 0, len(text), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	copy(page[strings.Index(string(text), "aaaa"):], "bbbb")
	queues(sc, c, "bbbb", "aaaa")
	if err := syscall.Munmap(page); err != nil {
		t.Error(err)
	}
}

// volume is a directory as a kubelet writes it: one directory for each version, a link `..data` to
// the current one that a rename replaces, and links to the files through it.
type volume struct {
	t    *testing.T
	dir  string
	last string
}

// put writes the next version.
func (v *volume) put(version string, files map[string]string) {
	v.t.Helper()
	at := func(name string) string { return filepath.Join(v.dir, name) }
	err := os.MkdirAll(at(version), 0o755)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(at(version), name), []byte(text), 0o644))
	}
	err = errors.Join(err, os.Symlink(version, at("..data_tmp")), os.Rename(at("..data_tmp"), at("..data")))
	for name := range files {
		if v.last == "" {
			err = errors.Join(err, os.Symlink("..data/"+name, at(name)))
		}
	}
	if v.last != "" {
		err = errors.Join(err, os.RemoveAll(at(v.last)))
	}
	if v.last = version; err != nil {
		v.t.Fatal(err)
	}
}

// TestReloadOfVolumes has the config in one volume and the password in another. It swaps them in
// turn, a dozen times, while a job is claimed and a claim waits.
func TestReloadOfVolumes(t *testing.T) {
	t.Parallel()
	s, srv := kit.NewPostgresSite(t)
	r := &reloadRun{t: t, s: s, srv: srv, secret: filepath.Join(s.Dir, "first")}
	r.passwords()
	secrets, configs := &volume{t: t, dir: filepath.Join(s.Dir, "secrets")}, &volume{t: t, dir: filepath.Join(s.Dir, "configs")}
	sc := s.Sidecar("a")
	text := func(queue string) map[string]string {
		return map[string]string{"c.yaml": "listen: [{socket: " + sc.Socket + "}]\ndatabases:\n  main: {url: \"postgres://app@" + srv.Addr + "/" + srv.Name +
			"\", password_file: " + filepath.Join(secrets.dir, "password") + "}\nqueues: {work: {}, " + queue + ": {}}\n"}
	}
	password := func(word string) map[string]string {
		r.exec("ALTER ROLE app PASSWORD '" + word + "'")
		return map[string]string{"password": word + "\n"}
	}
	secrets.put("..0", password("word-0"))
	configs.put("..0", text("q0"))
	sc.ConfigFile = filepath.Join(configs.dir, "c.yaml")
	sc.Start()
	c, waits := sc.Dial(), sc.Dial()
	c.Must(kit.Msg{"op": "enqueue", "queue": "work"})
	held := c.ClaimOne("work")
	waits.Post(kit.Msg{"op": "claim", "queue": "work", "wait_ms": 600_000})
	generation := c.Must(kit.Msg{"op": "status"}).Generation
	taken := func(what string) {
		t.Helper()
		generation++
		testwait.Until(t, what+" is taken", func() bool {
			st := c.Must(kit.Msg{"op": "status"})
			return st.ConfigError == "" && st.Generation == generation
		})
	}
	for n := range 6 {
		name := string(rune('1' + n))
		configs.put(".."+name, text("q"+name))
		taken("the config " + name)
		c.Must(kit.Msg{"op": "stats", "queue": "q" + name})
		secrets.put(".."+name, password("word-"+name))
		taken("the password " + name)
		c.Must(kit.Msg{"op": "extend", "lease": held.Lease}) // on a connection of the new pool, or of the old one before it closes
	}
	c.Must(kit.Msg{"op": "ack", "lease": held.Lease})
	c.Must(kit.Msg{"op": "enqueue", "queue": "work"})
	if got := waits.Next(); got.Error != nil || len(got.Jobs) != 1 || got.Jobs[0].Attempt != 1 {
		t.Errorf("the claim that waited is answered %+v", got)
	}
}
