package testserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Galera is a cluster of MariaDB nodes on 127.0.0.1. Each node accepts writes.
type Galera struct {
	Nodes []*MySQL
}

// StartGalera starts a cluster of n nodes and waits until all are ready.
func StartGalera(ctx context.Context, n int, o Options) (_ *Galera, err error) {
	who, err := local.Unprivileged()
	if err != nil {
		return nil, err
	}
	cache, err := local.CacheDirOf(who)
	if err != nil {
		return nil, err
	}
	provider := galeraHome(cache)
	if err := debian.Install(ctx, cache, origins[MariaDB1011].suite, provider, "galera-4", "libfaketime"); err != nil {
		return nil, err
	}
	g := &Galera{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Stop())
		}
	}()
	clocks, err := filepath.Glob(filepath.Join(provider, "usr/lib/*/faketime/libfaketimeMT.so.1"))
	if err != nil || len(clocks) != 1 {
		return nil, fmt.Errorf("%s has no libfaketime: remove the folder, and it is fetched again (%v, %w)", provider, clocks, err)
	}
	o.clock = clocks[0]
	settings, err := galeraSettings(n, filepath.Join(provider, "usr/lib/galera/libgalera_smm.so"), o)
	if err != nil {
		return nil, err
	}
	// All nodes start with a copy of the first one's data, so no node has to transfer it.
	seed, err := startMySQL(ctx, MariaDB1011, settings[0], "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, seed.Stop()) }()
	if err := seed.Halt(); err != nil {
		return nil, err
	}
	for i := range n {
		node, err := startMySQL(ctx, MariaDB1011, settings[i], filepath.Join(seed.dir, "data"))
		if err != nil {
			return nil, err
		}
		g.Nodes = append(g.Nodes, node)
	}
	return g, g.Whole(ctx)
}

// galeraSettings returns the settings of each node.
func galeraSettings(n int, provider string, o Options) ([]Options, error) {
	var group, transfers []string // the nodes' addresses in the group, and for transfers of data
	for range n {
		for _, list := range []*[]string{&group, &transfers} {
			port, err := local.FreePort()
			if err != nil {
				return nil, err
			}
			*list = append(*list, "127.0.0.1:"+port)
		}
	}
	var all []Options
	for i := range n {
		settings := map[string]string{
			"binlog-format": "ROW", "innodb-autoinc-lock-mode": "2", "wsrep-on": "ON",
			"wsrep-provider":        provider,
			"wsrep-cluster-address": "gcomm://" + strings.Join(group, ","), "wsrep-cluster-name": "qsidecar",
			"wsrep-node-address": "127.0.0.1", "wsrep-node-name": fmt.Sprintf("node%d", i+1),
			"wsrep-sst-method": "local", "wsrep-slave-threads": "2",
			"wsrep-provider-options": "gmcast.listen_addr=tcp://" + group[i] + ";ist.recv_addr=" + transfers[i] +
				";gcache.size=256M;evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT4S;evs.inactive_check_period=PT0.2S",
		}
		maps.Copy(settings, o.Settings)
		all = append(all, Options{Durable: o.Durable, Settings: settings, clock: o.clock})
	}
	return all, nil
}

// galeraHome returns the directory of the unpacked libraries.
func galeraHome(cache string) string {
	return filepath.Join(cache, "galera-faketime-"+origins[MariaDB1011].suite)
}

// Whole waits until all nodes are ready and members of one cluster.
func (g *Galera) Whole(ctx context.Context) error { return testwait.Poll(ctx, g.whole) }

func (g *Galera) whole(ctx context.Context) (failed error) {
	for i, node := range g.Nodes {
		for name, want := range map[string]string{"wsrep_ready": "ON", "wsrep_local_state_comment": "Synced", "wsrep_cluster_size": fmt.Sprint(len(g.Nodes))} {
			row, err := node.row(ctx, "SHOW STATUS LIKE '"+name+"'")
			if err != nil || row[1] != want {
				failed = errors.Join(failed, fmt.Errorf("node %d: %s is %v, want %s: %w", i+1, name, row, want, err))
			}
		}
	}
	return failed
}

// Stop ends all nodes and removes their data.
func (g *Galera) Stop() (err error) {
	for _, node := range g.Nodes {
		err = errors.Join(err, node.Stop())
	}
	return err
}

// transferScript is the program that a node starts to join. All nodes have a part of the cluster's
// history and their directories are on one host. So the script only makes the joiner wait
// until the donor sends the rest. The address of the joiner ends with its directory.
const transferScript = `#!/bin/sh
set -e
while [ $# -gt 0 ]; do
	case $1 in
	--role) role=$2 ;;
	--address) address=$2 ;;
	--datadir) data=$2 ;;
	--gtid) gtid=$2 ;;
	--gtid-domain-id) domain=$2 ;;
	--bypass) bypass=1 ;;
	esac
	shift
done
if [ "$role" = joiner ]; then
	rm -f "$data/transferred"
	echo "ready $address$data"
	while [ ! -e "$data/transferred" ]; do sleep 0.1; done
	cat "$data/transferred"
elif [ -n "$bypass" ]; then
	to=/${address#*/}
	echo "$gtid $domain" >"$to/transferring"
	mv "$to/transferring" "$to/transferred"
	echo continue
	echo "done $gtid"
else
	echo "the donor lacks a part of the history that the joiner needs" >&2
	exit 1
fi
`

func (m *MySQL) transferScript() error {
	return os.WriteFile(filepath.Join(m.dir, "wsrep_sst_local"), []byte(transferScript), 0o755)
}

// joinEnv completes the command that starts a node. The node finds transferScript, and has a clock that SetClock sets.
func (m *MySQL) joinEnv(cmd *exec.Cmd) error {
	cmd.Env = append(os.Environ(), "PATH="+m.dir+":"+os.Getenv("PATH"))
	if m.clock == "" {
		return nil
	}
	if err := removeStaleClocks(); err != nil {
		return err
	}
	// The loader gets the library, because transferScript must run without it.
	cmd.Args = slices.Insert(cmd.Args, 1, "--preload", m.clock)
	cmd.Env = append(cmd.Env, "FAKETIME_TIMESTAMP_FILE="+m.clockFile(), "FAKETIME_CACHE_DURATION=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
	if _, err := os.Stat(m.clockFile()); err == nil {
		return nil
	}
	return m.SetClock(0)
}

// removeStaleClocks removes the shared memory of libfaketime in processes that were killed. Otherwise a process that gets the same id
// doesn't start.
func removeStaleClocks() (err error) {
	for _, prefix := range []string{"/dev/shm/faketime_shm_", "/dev/shm/sem.faketime_sem_"} {
		files, failed := filepath.Glob(prefix + "*")
		err = errors.Join(err, failed)
		for _, file := range files {
			if local.Exists("/proc/" + strings.TrimPrefix(file, prefix)) {
				continue
			}
			if failed := os.Remove(file); !errors.Is(failed, os.ErrNotExist) {
				err = errors.Join(err, failed)
			}
		}
	}
	return err
}

func (m *MySQL) clockFile() string { return filepath.Join(m.dir, "clock") }

// SetClock sets the clock of a Galera node, relative to the machine's. The node's statements use it about a second later.
func (m *MySQL) SetClock(ahead time.Duration) error {
	next := m.clockFile() + ".next"
	return errors.Join(os.WriteFile(next, fmt.Appendf(nil, "%+f\n", ahead.Seconds()), 0o644), os.Rename(next, m.clockFile()))
}

var recovered = regexp.MustCompile(`Recovered position: *(\S+)`)

// joinArgs returns the arguments with which a node of a cluster starts. After a crash it finds its
// position, so that a node that has the changes since then sends only these.
func (m *MySQL) joinArgs() ([]string, error) {
	if m.bootstrap != "" {
		return []string{"--wsrep-new-cluster", "--wsrep-start-position=" + m.bootstrap}, nil
	}
	state, err := os.ReadFile(filepath.Join(m.dir, "data", "grastate.dat"))
	switch {
	case errors.Is(err, os.ErrNotExist), m.run == nil && slices.Contains(m.args, "--wsrep-node-name=node1"): // the first start of the seed, and of the first node
		return []string{"--wsrep-new-cluster"}, nil
	case err != nil || !strings.Contains(string(state), "seqno:   -1"):
		return nil, err
	}
	position, err := m.recoveredPosition()
	if err != nil {
		return nil, err
	}
	return []string{"--wsrep-start-position=" + position}, nil
}

// recoveredPosition returns the history that a node that crashed has, and the number of its last change in it.
func (m *MySQL) recoveredPosition() (string, error) {
	log := filepath.Join(m.dir, "recover")
	cmd, err := program(m.home, append(slices.Clone(m.args), "--wsrep-recover")...)
	if err != nil {
		return "", err
	}
	run, err := local.Launch(cmd, m.who, syscall.SIGKILL, log)
	if err != nil {
		return "", err
	}
	status := <-run.Ended
	position := recovered.FindStringSubmatch(run.Output())
	if err := os.Remove(log); err != nil || position == nil {
		return "", fmt.Errorf("a node that crashed does not find its position: %w\n%s", errors.Join(status, err), run.Output())
	}
	return position[1], nil
}

// Isolate cuts a node off the others, or connects it again.
func (g *Galera) Isolate(ctx context.Context, node int, cut bool) error {
	value := "0"
	if cut {
		value = "1"
	}
	return g.Nodes[node].Exec(ctx, "SET GLOBAL wsrep_provider_options = 'gmcast.isolate="+value+"'")
}

// Desync lets a node fall behind the others without slowing them, or ends that.
func (g *Galera) Desync(ctx context.Context, node int, on bool) error {
	value := "OFF"
	if on {
		value = "ON"
	}
	return g.Nodes[node].Exec(ctx, "SET GLOBAL wsrep_desync = "+value)
}

// SetClock sets the clock of a node, relative to the machine's, and waits until its statements use it.
func (g *Galera) SetClock(ctx context.Context, node int, ahead time.Duration) error {
	if err := g.Nodes[node].SetClock(ahead); err != nil {
		return err
	}
	return testwait.Poll(ctx, func(ctx context.Context) error {
		began := time.Now()
		row, err := g.Nodes[node].row(ctx, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
		if err != nil {
			return err
		}
		micros, err := strconv.ParseInt(row[0], 10, 64)
		if off := time.UnixMicro(micros).Sub(began) - ahead; err != nil || off < -time.Millisecond || off > time.Since(began) {
			return fmt.Errorf("its clock is %v off: %w", off, err)
		}
		return nil
	})
}

// Without waits until another node has a cluster without a node. It also returns if no other node runs: MariaDB's nodes crash by
// themselves when transactions conflict.
func (g *Galera) Without(ctx context.Context, node int) error {
	return testwait.Poll(ctx, func(ctx context.Context) (failed error) {
		for i, other := range g.Nodes {
			if i == node || other.Ended() {
				continue
			}
			row, err := other.row(ctx, "SHOW STATUS LIKE 'wsrep_cluster_size'")
			if err == nil && row[1] != strconv.Itoa(len(g.Nodes)) {
				return nil
			}
			failed = errors.Join(failed, fmt.Errorf("node %d: wsrep_cluster_size is %v: %w", i+1, row, err))
		}
		return failed
	})
}

// Revive starts each node whose process has ended, or ends in the meantime, and waits until the cluster is whole. It returns
// the names of the nodes that it started. A cluster without any node starts with the most advanced one.
func (g *Galera) Revive(ctx context.Context) (started []string, err error) {
	err = testwait.Poll(ctx, func(ctx context.Context) error {
		names, err := g.startEnded(ctx)
		started = append(started, names...)
		return errors.Join(err, g.whole(ctx))
	})
	return started, err
}

// startEnded starts each node whose process has ended, and returns their names.
func (g *Galera) startEnded(ctx context.Context) (started []string, err error) {
	for i, node := range g.Nodes {
		if node.Ended() {
			started = append(started, fmt.Sprintf("node%d", i+1))
		}
	}
	if len(started) == len(g.Nodes) {
		first, err := g.mostAdvanced()
		if err == nil {
			err = first.Restart(ctx)
		}
		if err != nil {
			return started, err
		}
		first.bootstrap = ""
	}
	for _, node := range g.Nodes {
		if err == nil && node.Ended() {
			err = node.Restart(ctx)
		}
	}
	return started, err
}

// mostAdvanced prepares the node with the longest history to start a new cluster.
func (g *Galera) mostAdvanced() (*MySQL, error) {
	var first *MySQL
	longest := int64(-2)
	for _, node := range g.Nodes {
		position, err := node.recoveredPosition()
		if err != nil {
			return nil, err
		}
		_, after, _ := strings.Cut(position, ":")
		number, err := strconv.ParseInt(after, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("position %q: %w", position, err)
		}
		if number > longest {
			first, longest, node.bootstrap = node, number, position
		}
	}
	for _, node := range g.Nodes {
		if node != first {
			node.bootstrap = ""
		}
	}
	state := filepath.Join(first.dir, "data", "grastate.dat")
	text, err := os.ReadFile(state)
	if err != nil {
		return nil, err
	}
	return first, os.WriteFile(state, []byte(strings.Replace(string(text), "safe_to_bootstrap: 0", "safe_to_bootstrap: 1", 1)), 0o644)
}
