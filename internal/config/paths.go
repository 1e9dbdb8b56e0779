package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// SystemFile is the config file of a host. It is read if no flag or variable names one.
const SystemFile = "/etc/qsidecar/config.yaml"

// NoFile in the place of a config file's name means the built-in defaults.
const NoFile = "none"

const (
	systemSocket = "/run/qsidecar/qsidecar.sock"
	systemState  = "/var/lib/qsidecar"
	databaseFile = "qsidecar.db"
)

// FindFile sets File if no flag did: to QSIDECAR_CONFIG, or else to system if that exists.
// It turns NoFile into an empty File.
func (in *Input) FindFile(system string) {
	if in.File == "" {
		in.File = in.getenv("QSIDECAR_CONFIG")
	}
	if in.File == "" && exists(system) {
		in.File = system
	}
	if in.File == NoFile {
		in.File = ""
	}
}

// exists reports whether there is a file, also if this user can't see it. A config that
// can't be read must be an error.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
}

// Sockets returns the possible paths of a sidecar's socket in the order in which servers and
// clients try them. It returns several only if no flag or variable names one.
func (in Input) Sockets() []string {
	if in.Socket != "" {
		return []string{in.Socket}
	}
	if s := in.getenv("QSIDECAR_SOCKET"); s != "" {
		return []string{s}
	}
	if dir := in.getenv("XDG_RUNTIME_DIR"); dir != "" {
		return []string{filepath.Join(dir, "qsidecar", "qsidecar.sock"), systemSocket}
	}
	return []string{systemSocket}
}

// inheritedSockets returns the sockets of the service manager, unless a flag or variable
// names another one.
func (in Input) inheritedSockets() []string {
	if in.Socket != "" || in.getenv("QSIDECAR_SOCKET") != "" {
		return nil
	}
	return in.Inherited
}

// defaultDatabase returns the URL of the embedded database.
func (in Input) defaultDatabase() (string, error) {
	if dir := in.getenv("XDG_STATE_HOME"); dir != "" {
		return "sqlite:" + filepath.Join(dir, "qsidecar", databaseFile), nil
	}
	if os.Geteuid() == 0 {
		return "sqlite:" + filepath.Join(systemState, databaseFile), nil
	}
	home := in.getenv("HOME")
	if home == "" {
		return "", Errorf("where should the database be? HOME and XDG_STATE_HOME are not set: " +
			"give --database sqlite:PATH or set QSIDECAR_DATABASE")
	}
	return "sqlite:" + filepath.Join(home, ".local", "state", "qsidecar", databaseFile), nil
}

// MakeSocketDir creates the directory of a socket. All users can enter it, because the
// socket's mode controls access, unless it is below the user's runtime directory.
func (in Input) MakeSocketDir(socket string) error {
	if slices.Contains(in.Inherited, socket) {
		return nil
	}
	dir := filepath.Dir(socket)
	mode := fs.FileMode(0o755)
	if run := in.getenv("XDG_RUNTIME_DIR"); run != "" && filepath.Dir(dir) == filepath.Clean(run) {
		mode = 0o700
	}
	return MakeDir(dir, mode, "the socket's directory",
		"give --socket PATH, or set QSIDECAR_SOCKET or XDG_RUNTIME_DIR")
}

// MakeDir creates dir and its parents. It sets the mode of dir regardless of the umask. what
// and instead are parts of the error.
func MakeDir(dir string, mode fs.FileMode, what, instead string) error {
	switch fi, err := os.Stat(dir); {
	case err == nil && !fi.IsDir():
		return fmt.Errorf("%s %s is not a directory: %s", what, dir, instead)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: %s", what, err, instead)
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("%s cannot be created: %w: %s", what, err, instead)
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
