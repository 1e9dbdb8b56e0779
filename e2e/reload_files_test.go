package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// queues waits until the sidecar serves the one queue and not the other.
func (sc *sidecar) queues(c *conn, has, not string) {
	sc.t.Helper()
	eventually(sc.t, patience, "the queue "+has+" is there, and not "+not, func() bool {
		return c.ask(msg{"op": "stats", "queue": has}).Error == nil && c.ask(msg{"op": "stats", "queue": not}).Error != nil
	})
}

// TestReloadWithoutEvents: the system tells nobody of what is written through mmap(2), as it
// tells nobody of what another host writes on a network's file system. It is found all the
// same, and no connection is closed.
func TestReloadWithoutEvents(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.queues = "  aaaa: {}\n"
	sc := s.sidecar("a")
	alone := filepath.Join(s.dir, "alone", "a.yaml") // where nothing else is an event
	if err := errors.Join(os.Mkdir(filepath.Dir(alone), 0o755), os.Rename(sc.config, alone)); err != nil {
		t.Fatal(err)
	}
	sc.config = alone
	file, err := os.OpenFile(sc.config, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() // after it was found: to close it may be an event
	text, err := os.ReadFile(sc.config)
	if err != nil {
		t.Fatal(err)
	}
	sc.start()
	c := sc.dial()
	sc.queues(c, "aaaa", "bbbb")
	page, err := syscall.Mmap(int(file.Fd()), 0, len(text), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	copy(page[strings.Index(string(text), "aaaa"):], "bbbb")
	sc.queues(c, "bbbb", "aaaa")
	if err := syscall.Munmap(page); err != nil {
		t.Error(err)
	}
}

// volume is a folder as a kubelet writes it: of each version a folder of its own, `..data` as
// a link to the present one, which a rename swaps, and links through that for the files.
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

// TestReloadOfVolumes: the config in one volume and the password in another, each swapped in
// turn, a dozen times, while a job is held and a claim waits.
func TestReloadOfVolumes(t *testing.T) {
	t.Parallel()
	s, srv := newPostgresSite(t)
	r := &reloadRun{t: t, s: s, srv: srv, secret: filepath.Join(s.dir, "first")}
	r.passwords()
	secrets, configs := &volume{t: t, dir: filepath.Join(s.dir, "secrets")}, &volume{t: t, dir: filepath.Join(s.dir, "configs")}
	sc := s.sidecar("a")
	text := func(queue string) map[string]string {
		return map[string]string{"c.yaml": "listen: [{socket: " + sc.socket + "}]\ndatabases:\n  main: {url: \"postgres://app@" + srv.addr + "/" + srv.database +
			"\", password_file: " + filepath.Join(secrets.dir, "password") + "}\nqueues: {work: {}, " + queue + ": {}}\n"}
	}
	password := func(word string) map[string]string {
		r.exec("ALTER ROLE app PASSWORD '" + word + "'")
		return map[string]string{"password": word + "\n"}
	}
	secrets.put("..0", password("word-0"))
	configs.put("..0", text("q0"))
	sc.config = filepath.Join(configs.dir, "c.yaml")
	sc.start()
	c, waits := sc.dial(), sc.dial()
	c.must(msg{"op": "enqueue", "queue": "work"})
	held := c.claimOne("work")
	waits.post(msg{"op": "claim", "queue": "work", "wait_ms": 600_000})
	generation := c.must(msg{"op": "status"}).Generation
	taken := func(what string) {
		t.Helper()
		generation++
		eventually(t, patience, what+" is taken", func() bool {
			st := c.must(msg{"op": "status"})
			return st.ConfigError == "" && st.Generation == generation
		})
	}
	for n := range 6 {
		name := string(rune('1' + n))
		configs.put(".."+name, text("q"+name))
		taken("the config " + name)
		c.must(msg{"op": "stats", "queue": "q" + name})
		secrets.put(".."+name, password("word-"+name))
		taken("the password " + name)
		c.must(msg{"op": "extend", "lease": held.Lease}) // by a connection of the new pool, or one that ends its work
	}
	c.must(msg{"op": "ack", "lease": held.Lease})
	c.must(msg{"op": "enqueue", "queue": "work"})
	if got := waits.next(); got.Error != nil || len(got.Jobs) != 1 || got.Jobs[0].Attempt != 1 {
		t.Errorf("the claim that waited is answered %+v", got)
	}
}
