package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
)

const (
	systemSocket = "/run/qsidecar/qsidecar.sock"
	systemState  = "/var/lib/qsidecar"
	databaseFile = "qsidecar.db"
)

// sockets lists where a sidecar's socket may be, in the order in which server and
// clients look. Only where nobody named one are there several.
func (a *app) sockets() []string {
	if a.socket != "" {
		return []string{a.socket}
	}
	if s := a.getenv("QSIDECAR_SOCKET"); s != "" {
		return []string{s}
	}
	if dir := a.getenv("XDG_RUNTIME_DIR"); dir != "" {
		return []string{filepath.Join(dir, "qsidecar", "qsidecar.sock"), systemSocket}
	}
	return []string{systemSocket}
}

// dial connects a command of one request to the first sidecar that answers.
func (a *app) dial(ctx context.Context) (*qsidecar.Client, error) {
	c, _, err := a.dialWith(ctx, qsidecar.Options{
		Worker: workerName("cli"),
		Retry:  -1, // a command says what is the matter; its caller knows whether to wait
	})
	return c, err
}

// dialWith connects to the first sidecar that answers, and says at which socket.
func (a *app) dialWith(ctx context.Context, opts qsidecar.Options) (c *qsidecar.Client, socket string, err error) {
	ctx, cancel := answering(ctx, answerTimeout)
	defer cancel()
	tried := a.sockets()
	var first error
	for _, opts.Socket = range tried {
		c, err := qsidecar.Dial(ctx, opts)
		if err == nil {
			return c, opts.Socket, nil
		}
		if !absent(err) {
			return nil, "", err // somebody is there: the next place would be a surprise
		}
		if first == nil {
			first = err
		}
	}
	return nil, "", &codeError{exitUnavailable, &unreachableError{tried: tried, err: first}}
}

// workerName is what the database shows as the holder of a claim.
func workerName(what string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	name := fmt.Sprintf("qsidecar-%s@%s/%d", what, host, os.Getpid())
	return name[:min(len(name), 128)]
}

// defaultDatabase is the embedded database of a sidecar that was told of none.
func (a *app) defaultDatabase() (string, error) {
	if dir := a.getenv("XDG_STATE_HOME"); dir != "" {
		return "sqlite:" + filepath.Join(dir, "qsidecar", databaseFile), nil
	}
	if os.Geteuid() == 0 {
		return "sqlite:" + filepath.Join(systemState, databaseFile), nil
	}
	home := a.getenv("HOME")
	if home == "" {
		return "", usagef("where should the database be? HOME and XDG_STATE_HOME are not set: " +
			"give --database sqlite:PATH or set QSIDECAR_DATABASE")
	}
	return "sqlite:" + filepath.Join(home, ".local", "state", "qsidecar", databaseFile), nil
}

// makeSocketDir creates the directory of a socket where it is missing: open to
// the host's users, who are let in by the socket's mode, unless it is a user's own.
func (a *app) makeSocketDir(socket string) error {
	if a.isInherited(socket) {
		return nil
	}
	dir := filepath.Dir(socket)
	mode := fs.FileMode(0o755)
	if run := a.getenv("XDG_RUNTIME_DIR"); run != "" && filepath.Dir(dir) == filepath.Clean(run) {
		mode = 0o700
	}
	return makeDir(dir, mode, "the socket's directory",
		"give --socket PATH, or set QSIDECAR_SOCKET or XDG_RUNTIME_DIR")
}

// makeDir creates dir and its parents. The last gets the mode whatever the umask says.
func makeDir(dir string, mode fs.FileMode, what, instead string) error {
	switch fi, err := os.Stat(dir); {
	case err == nil && !fi.IsDir():
		return fmt.Errorf("%s %s is not a directory: %s", what, dir, instead)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: %s", what, err, instead)
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("%s cannot be made: %w: %s", what, err, instead)
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
