package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/internal/testwait"
)

// Freeze stops the server's process. Connections stay open and get no replies.
func (m *MySQL) Freeze() error { return m.run.process.Signal(syscall.SIGSTOP) }

// Thaw continues the server's process after Freeze.
func (m *MySQL) Thaw() error { return m.run.process.Signal(syscall.SIGCONT) }

// Ended reports whether the server's process has ended.
func (m *MySQL) Ended() bool {
	select {
	case status := <-m.run.ended:
		m.run.ended <- status
		return true
	default:
		return false
	}
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
