package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// SystemFile is the config file of a host. It is read if no flag or variable names one.
const SystemFile = "/etc/qsidecar/config.yaml"

// NoFile instead of a config file's name means the built-in defaults.
const NoFile = "none"

// SystemSocket is the socket of a sidecar that a service manager starts.
const SystemSocket = "/run/qsidecar/qsidecar.sock"

const (
	systemState  = "/var/lib/qsidecar"
	socketFile   = "qsidecar.sock"
	databaseFile = "qsidecar.db"
)

// FindFile sets File if no flag did: to QSIDECAR_CONFIG, or else to system if that exists.
// It turns NoFile into an empty File.
func (i *Input) FindFile(system string) {
	if i.File == "" {
		name, set := i.Env("QSIDECAR_CONFIG")
		i.File, i.emptyFile = name, set && name == ""
	}
	if i.File == "" && exists(system) {
		i.File = system
	}
	if i.File == NoFile {
		i.File = ""
	}
}

// exists reports whether there is a file, also if this user can't see it. A config that
// can't be read must be an error.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
}

// Sockets returns the possible paths of a sidecar's socket in the order in which clients try
// them. It returns several only if no flag or variable names one. The clients in other
// languages use the same order.
func (i Input) Sockets() (all []string) {
	if s := cmp.Or(i.Socket, i.getenv("QSIDECAR_SOCKET")); s != "" {
		return []string{s}
	}
	if dir := i.runtimeDir(); dir != "" {
		all = append(all, filepath.Join(dir, "qsidecar", socketFile))
	}
	if dir := i.userState(); dir != "" && isDir(dir) {
		all = append(all, filepath.Join(dir, socketFile))
	}
	return append(all, i.systemSocket())
}

var (
	// socketURL matches a path that is written as a URL, as some other programs take it.
	socketURL = regexp.MustCompile(`^(?:(unix):(?://)?|[A-Za-z][A-Za-z0-9+.-]*://)(.*)`)
	// hostAndPort matches an address of a TCP listener.
	hostAndPort = regexp.MustCompile(`^[^/]+:[0-9]+$`)
	// onlyPort matches a number.
	onlyPort = regexp.MustCompile(`^[0-9]+$`)
)

// checkSocketPath reports a socket that is written as a URL. A sidecar would listen on a file of that name.
func checkSocketPath(path string) error {
	if strings.HasPrefix(path, "~") || strings.HasPrefix(path, "$") {
		return fmt.Errorf("%q: ~ and variables aren't replaced here: write the whole path", path)
	}
	if hostAndPort.MatchString(path) {
		return fmt.Errorf("%q is a host and a port, and this must be the path of a Unix socket, such as %s (the port of admin.listen is for people and metrics)", path, SystemSocket)
	}
	if onlyPort.MatchString(path) {
		return fmt.Errorf("%q is a port, and this must be the path of a Unix socket, such as %s", path, SystemSocket)
	}
	switch m := socketURL.FindStringSubmatch(path); {
	case m == nil:
		return nil
	case m[1] != "" && m[2] != "":
		return fmt.Errorf("%q is not a path: write %s", path, m[2])
	}
	return fmt.Errorf("%q is a URL, and this must be the path of a Unix socket, such as %s", path, SystemSocket)
}

// CheckSocket checks the path of the socket that a flag or variable names.
func (i Input) CheckSocket() error {
	source, path := i.namedSocket()
	if err := checkSocketPath(path); err != nil {
		return Errorf("%s: %w", source, err)
	}
	return nil
}

// CheckSocketFile is CheckSocket for a client, for which the socket exists.
func (i Input) CheckSocketFile() error {
	if err := i.CheckSocket(); err != nil {
		return Errorf("%w (`qsidecar serve` prints the one that it serves)", err)
	}
	source, path := i.namedSocket()
	info, err := os.Stat(path)
	switch {
	case path == "" || err != nil:
		return nil // that no sidecar answers there is reported later
	case info.IsDir():
		return Errorf("%s: %s is a folder: name the socket in it, such as %s", source, path, filepath.Join(path, socketFile))
	case info.Mode().IsRegular():
		return Errorf("%s: %s is a file, and not a socket: name the one that `qsidecar serve` printed", source, path)
	}
	return nil
}

// namedSocket returns the path that a flag or variable names, and which of them.
func (i Input) namedSocket() (source, path string) {
	if i.Socket != "" {
		return "--socket", i.Socket
	}
	return "QSIDECAR_SOCKET", i.getenv("QSIDECAR_SOCKET")
}

// servedSocket returns the path of the socket to serve if the config doesn't list any: the
// first of Sockets in a directory that this user can create files in.
func (i Input) servedSocket() string {
	if s := cmp.Or(i.Socket, i.getenv("QSIDECAR_SOCKET")); s != "" {
		return s
	}
	if dir := i.runtimeDir(); dir != "" {
		return filepath.Join(dir, "qsidecar", socketFile)
	}
	if dir := i.userState(); dir != "" && !writable(filepath.Dir(i.systemSocket())) {
		return filepath.Join(dir, socketFile)
	}
	return i.systemSocket()
}

// runtimeDir returns the user's runtime directory, or "" if the environment doesn't set one. Root
// gets none that another user owns, as after `sudo -E`: that user could replace the socket, or
// serve one of its own to root's workers.
func (i Input) runtimeDir() string {
	dir := i.getenv("XDG_RUNTIME_DIR")
	if dir != "" && os.Geteuid() == 0 && (isForeign(dir) || isForeign(filepath.Join(dir, "qsidecar"))) {
		return ""
	}
	return dir
}

// isForeign reports whether another user than root owns dir, or the directory in which it would
// be created.
func isForeign(dir string) bool {
	for {
		fi, err := os.Stat(dir)
		parent := filepath.Dir(dir)
		switch {
		case err == nil:
			return fi.Sys().(*syscall.Stat_t).Uid != 0
		case !errors.Is(err, fs.ErrNotExist) || parent == dir:
			return false // nothing can be there
		}
		dir = parent
	}
}

func (i Input) systemSocket() string { return cmp.Or(i.SystemSocket, SystemSocket) }

// userState returns the state directory of a user other than root. It is empty for root, and
// if the environment doesn't set one.
func (i Input) userState() string {
	if os.Geteuid() == 0 {
		return ""
	}
	return i.stateDir()
}

// stateDir returns the directory of the embedded database, or "" if the environment
// doesn't set one.
func (i Input) stateDir() string {
	if dir := i.getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "qsidecar")
	}
	if os.Geteuid() == 0 {
		return systemState
	}
	if home := i.getenv("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "qsidecar")
	}
	return ""
}

// isDir reports whether this user can see a directory at path.
func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// writable reports whether this user can create files in dir, or dir itself.
func writable(dir string) bool {
	err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if errors.Is(err, fs.ErrNotExist) {
		err = unix.Faccessat(unix.AT_FDCWD, filepath.Dir(dir), unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	}
	return err == nil
}

// inheritedSockets returns the sockets of the service manager, unless a flag or variable
// names another one.
func (i Input) inheritedSockets() []string {
	if i.Socket != "" || i.getenv("QSIDECAR_SOCKET") != "" {
		return nil
	}
	return i.Inherited
}

// defaultDatabase returns the URL of the embedded database.
func (i Input) defaultDatabase() (string, error) {
	dir := i.stateDir()
	if dir == "" {
		return "", Errorf("where should the database be? HOME and XDG_STATE_HOME are not set: " +
			"give --database sqlite:PATH or set QSIDECAR_DATABASE")
	}
	return "sqlite:" + filepath.Join(dir, databaseFile), nil
}

// MakeSocketDir creates the directory of a socket. All users can enter it, because the
// socket's mode controls access, unless it is below the user's runtime directory or is the
// user's state directory.
func (i Input) MakeSocketDir(socket string) error {
	if slices.Contains(i.Inherited, socket) {
		return nil
	}
	dir := filepath.Dir(socket)
	mode := fs.FileMode(0o755)
	if run := i.getenv("XDG_RUNTIME_DIR"); run != "" && filepath.Dir(dir) == filepath.Clean(run) || dir == i.userState() {
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
