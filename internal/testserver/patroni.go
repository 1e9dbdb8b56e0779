package testserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Patroni is a cluster of PostgreSQL 15 servers that Patroni manages, with one etcd, on 127.0.0.1.
type Patroni struct {
	Members []*PatroniMember

	synchronous bool
	through     func(member, to string) string
	home, dir   string
	who         local.Account
	etcd        *local.Process
	etcdPort    string
}

// PatroniMember is one server of the cluster with its Patroni.
type PatroniMember struct {
	Name, Addr string // Addr is the host and port of PostgreSQL for clients

	server    *Postgres // without what through returned
	dir, rest string
	patroni   *local.Process
	postgres  int // the process id of the server when it was last frozen or killed
}

// patroniSuite is the Debian suite of the packages.
const patroniSuite = "bookworm"

func patroniHome(cache string) string { return filepath.Join(cache, "patroni-"+patroniSuite) }

// StartPatroni starts a cluster of n members and waits until all run. Commits wait for one of the standbys if synchronous is true.
// Connections lead to the address that through returns for their destination. It is called for each member in this order: from the
// member to etcd, from clients to its PostgreSQL, from other members to its PostgreSQL, and from them to its Patroni.
func StartPatroni(ctx context.Context, n int, synchronous bool, through func(member, to string) string) (_ *Patroni, err error) {
	local.RemoveDeadServers()
	c := &Patroni{synchronous: synchronous, through: through}
	if c.who, err = local.Unprivileged(); err != nil {
		return nil, err
	}
	if c.home, err = installPatroni(ctx, c.who); err != nil {
		return nil, err
	}
	if c.dir, err = local.NewServerDir("qspg", false); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := errors.Join(os.Chmod(c.dir, 0o755), os.Mkdir(filepath.Join(c.dir, "etcd"), 0o700), own(c.dir, c.who)); err != nil {
		return nil, err
	}
	if err := c.startEtcd(ctx); err != nil {
		return nil, err
	}
	for i := range n {
		if err := c.add(ctx, fmt.Sprint("m", i+1)); err != nil {
			return nil, err
		}
	}
	if err := c.Whole(ctx); err != nil {
		return nil, err
	}
	return c, local.RecordServer("PostgreSQL 15 under Patroni")
}

func (p *Patroni) startEtcd(ctx context.Context) (err error) {
	peers, err := local.FreePort()
	if err != nil {
		return err
	}
	if p.etcdPort, err = local.FreePort(); err != nil {
		return err
	}
	clients, members := "http://127.0.0.1:"+p.etcdPort, "http://127.0.0.1:"+peers
	loader, libraries, err := debian.Loader(p.home)
	if err != nil {
		return err
	}
	cmd := exec.Command(loader, "--library-path", libraries, filepath.Join(p.home, "usr/bin/etcd"), "--data-dir", filepath.Join(p.dir, "etcd", "data"),
		"--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", members,
		"--initial-advertise-peer-urls", members, "--initial-cluster", "default="+members, "--unsafe-no-fsync")
	if p.etcd, err = local.Launch(cmd, p.who, syscall.SIGKILL, filepath.Join(p.dir, "etcd", "log")); err != nil {
		return err
	}
	return p.etcd.WaitReady(ctx, "etcd", func(ctx context.Context) error { return ok(ctx, clients+"/health") })
}

// ok returns an error unless a URL answers with 200.
func ok(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, r.Status)
	}
	return errors.Join(err, r.Body.Close())
}

const patroniConfig = `scope: qsidecar
name: %[1]s
restapi: {listen: "127.0.0.1:%[2]s", connect_address: "%[9]s"}
etcd3: {hosts: ["%[3]s"], use_proxies: true} # otherwise Patroni uses the address that etcd names
bootstrap:
  dcs:
    ttl: 20 # longer than a machine stalls
    loop_wait: 1
    retry_timeout: 5
    synchronous_mode: %[4]t
    maximum_lag_on_failover: 1073741824 # the tests make the standbys lag
    postgresql:
      use_pg_rewind: true
      parameters: {max_connections: 100, shared_buffers: 64MB, dynamic_shared_memory_type: mmap, wal_keep_size: 1GB, timezone: Asia/Kathmandu}
  initdb: [{encoding: UTF8}, {locale: C}, {auth: trust}, no-sync]
postgresql:
  listen: "127.0.0.1:%[5]s"
  connect_address: "%[8]s"
  data_dir: %[6]s/data
  bin_dir: %[7]s
  pgpass: %[6]s/pgpass
  pg_hba: ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
  authentication: {superuser: {username: postgres}, replication: {username: replica}, rewind: {username: postgres}}
  parameters: {unix_socket_directories: %[6]s}
`

// add starts a member and waits until its server answers.
func (p *Patroni) add(ctx context.Context, name string) error {
	m := &PatroniMember{Name: name, dir: filepath.Join(p.dir, name)}
	var ports [2]string
	for i := range ports {
		var err error
		if ports[i], err = local.FreePort(); err != nil {
			return err
		}
	}
	m.server = &Postgres{admin: &url.URL{Scheme: "postgres", User: url.User("postgres"), Host: "127.0.0.1:" + ports[0],
		Path: "/postgres", RawQuery: "sslmode=disable"}}
	m.rest = "http://127.0.0.1:" + ports[1]
	etcd := p.through(name, "127.0.0.1:"+p.etcdPort)
	m.Addr = p.through(name, m.server.admin.Host)
	text := fmt.Sprintf(patroniConfig, name, ports[1], etcd, p.synchronous, ports[0], m.dir, postgresBin(p.home),
		p.through(name, m.server.admin.Host), p.through(name, "127.0.0.1:"+ports[1]))
	err := errors.Join(os.Mkdir(m.dir, 0o700), os.WriteFile(filepath.Join(m.dir, "patroni.yaml"), []byte(text), 0o600), own(m.dir, p.who))
	if err != nil {
		return err
	}
	p.Members = append(p.Members, m)
	if err := p.Start(m); err != nil {
		return err
	}
	return m.patroni.WaitReady(ctx, "PostgreSQL under Patroni", func(ctx context.Context) error { return ok(ctx, m.rest+"/health") })
}

// Start starts a member's Patroni, which starts its server.
func (p *Patroni) Start(m *PatroniMember) (err error) {
	cmd := exec.Command(pythonOf(p.home), filepath.Join(p.home, "usr/bin/patroni"), filepath.Join(m.dir, "patroni.yaml"))
	m.patroni, err = local.Launch(cmd, p.who, syscall.SIGTERM, filepath.Join(m.dir, "log")) // at SIGTERM it ends its server too
	return err
}

// Whole waits until one member is the primary and all others follow it and have its last changes.
func (p *Patroni) Whole(ctx context.Context) error {
	return testwait.PollRarely(ctx, func(ctx context.Context) error { // members look at each other once a second
		primary, err := p.primary(ctx, nil)
		if err != nil {
			return err
		}
		synchronous := !p.synchronous
		for _, m := range p.Members {
			if m == primary {
				continue
			}
			if err := ok(ctx, m.rest+"/replica?lag=0"); err != nil {
				return err
			}
			synchronous = synchronous || ok(ctx, m.rest+"/synchronous") == nil
		}
		if !synchronous {
			return errors.New("no standby is synchronous")
		}
		return nil
	})
}

// Primary waits until a member is the primary, and returns it. It doesn't query the member without.
func (p *Patroni) Primary(ctx context.Context, without *PatroniMember) (primary *PatroniMember, err error) {
	err = testwait.Poll(ctx, func(ctx context.Context) (err error) {
		primary, err = p.primary(ctx, without)
		return err
	})
	return primary, err
}

// primary asks the member that has the leader's lock in etcd whether it is the primary. Each answer of a member costs a query to
// its server, and a failover takes 20 s.
func (p *Patroni) primary(ctx context.Context, without *PatroniMember) (*PatroniMember, error) {
	leader, err := p.leader(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range p.Members {
		if m.Name != leader || m == without {
			continue
		}
		if err := ok(ctx, m.rest+"/primary"); err != nil {
			return nil, err
		}
		return m, nil
	}
	return nil, fmt.Errorf("no member is the primary: %q has the lock", leader)
}

// leader returns the name of the member that has the leader's lock, or "" if no member has it.
func (p *Patroni) leader(ctx context.Context) (name string, err error) {
	key, err := json.Marshal(map[string][]byte{"key": []byte("/service/qsidecar/leader")})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:"+p.etcdPort+"/v3/kv/range", bytes.NewReader(key))
	if err != nil {
		return "", err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Body.Close()) }()
	var found struct {
		KVs []struct{ Value []byte }
	}
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil || r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("etcd: %s %s: %w", r.Status, text, err)
	}
	if len(found.KVs) > 0 {
		name = string(found.KVs[0].Value)
	}
	return name, nil
}

// Switchover makes Patroni choose another primary.
func (p *Patroni) Switchover(ctx context.Context, from *PatroniMember) error {
	return local.Run(ctx, pythonOf(p.home), filepath.Join(p.home, "usr/bin/patronictl"), "-c", filepath.Join(from.dir, "patroni.yaml"),
		"switchover", "qsidecar", "--leader", from.Name, "--force")
}

// Kill9 kills a member's Patroni and its server with signal 9. Start starts them again.
func (p *Patroni) Kill9(m *PatroniMember) error {
	if err := p.Freeze(m); err != nil {
		return err
	}
	_, err := m.patroni.Stop(syscall.SIGKILL)
	return errors.Join(err, local.SignalTree(m.postgres, syscall.SIGKILL))
}

// Freeze stops all processes of a member, as a host that hangs.
func (p *Patroni) Freeze(m *PatroniMember) error {
	if err := m.patroni.OS.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	pid, err := os.ReadFile(filepath.Join(m.dir, "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(pid), "\n")
	if m.postgres, err = strconv.Atoi(line); err != nil {
		return err
	}
	return local.SignalTree(m.postgres, syscall.SIGSTOP)
}

// Exec runs statements at the primary.
func (p *Patroni) Exec(ctx context.Context, statements ...string) error {
	primary, err := p.Primary(ctx, nil)
	if err != nil {
		return err
	}
	return primary.server.Exec(ctx, statements...)
}

// CaughtUp waits until all standbys have what is committed now.
func (p *Patroni) CaughtUp(ctx context.Context) error {
	primary, err := p.Primary(ctx, nil)
	if err != nil {
		return err
	}
	for _, m := range p.Members {
		if m != primary {
			err = errors.Join(err, m.server.CaughtUp(ctx, primary.server))
		}
	}
	return err
}

// Log returns the end of a member's log, for a test that failed.
func (p *Patroni) Log(m *PatroniMember) string {
	text := m.patroni.Output()
	return text[max(0, len(text)-4<<10):]
}

// Stop ends the cluster and removes its data.
func (p *Patroni) Stop() (err error) {
	for _, m := range p.Members {
		if m.patroni == nil {
			continue
		}
		if failed := p.Kill9(m); failed != nil && !errors.Is(failed, os.ErrNotExist) { // its server may not have started
			err = errors.Join(err, failed)
		}
		_, failed := m.patroni.Stop(syscall.SIGKILL)
		err = errors.Join(err, failed)
	}
	if p.etcd != nil {
		_, failed := p.etcd.Stop(syscall.SIGKILL)
		err = errors.Join(err, failed)
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// pythonOf returns the script that runs Python with its own libraries and bytecode.
func pythonOf(home string) string { return filepath.Join(home, "python-compiled") }

// postgresBin returns the directory of PostgreSQL's programs in the unpacked packages.
func postgresBin(home string) string { return filepath.Join(home, "usr/lib/postgresql/15/bin") }

// installPatroni unpacks Patroni, etcd and PostgreSQL, and returns their directory. pythonOf
// runs Patroni. PostgreSQL's programs there are scripts that start the real ones with their own libraries.
func installPatroni(ctx context.Context, who local.Account) (string, error) {
	cache, err := local.CacheDirOf(who)
	if err != nil {
		return "", err
	}
	home := patroniHome(cache)
	if err := debian.Install(ctx, cache, patroniSuite, home, "patroni", "python3-etcd", "etcd-server", "postgresql-15"); err != nil {
		return "", err
	}
	home, err = filepath.EvalSymlinks(home) // the scripts name it, and several checkouts can use it
	if err != nil {
		return "", err
	}
	return home, local.Locked(home+".lock", func() error {
		python := pythonOf(home)
		if local.Exists(python) {
			return nil
		}
		loader, libraries, err := debian.Loader(home)
		if err != nil {
			return err
		}
		for _, name := range []string{"postgres", "initdb", "pg_ctl", "pg_controldata", "pg_basebackup", "pg_rewind", "pg_isready"} {
			at := filepath.Join(postgresBin(home), name)
			if !local.Exists(at + ".real") {
				if err := os.Rename(at, at+".real"); err != nil {
					return err
				}
			}
			script := fmt.Sprintf("#!/bin/sh\nexec '%s' --library-path '%s' --argv0 '%s' '%s.real' \"$@\"\n", loader, libraries, at, at)
			if err := errors.Join(local.WriteProgram(at+".new", []byte(script)), os.Rename(at+".new", at)); err != nil {
				return err
			}
		}
		// The servers' user can't write bytecode, neither here nor where the tests keep theirs, and Patroni starts a Python for each start of a server.
		script := fmt.Sprintf("#!/bin/sh\nPYTHONHOME='%s/usr' PYTHONPYCACHEPREFIX= PYTHONDONTWRITEBYTECODE= exec '%s' --library-path '%s' '%s/usr/bin/python3' \"$@\"\n", home, loader, libraries, home)
		if err := local.WriteProgram(python+".new", []byte(script)); err != nil {
			return err
		}
		if err := local.Run(ctx, python+".new", "-c", "import patroni.__main__, patroni.api, patroni.ctl, patroni.dcs.etcd3, multiprocessing.spawn, psycopg2"); err != nil {
			return err
		}
		return os.Rename(python+".new", python)
	})
}
