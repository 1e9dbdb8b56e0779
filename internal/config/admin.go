package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/internal/unixsocket"
)

// Admin is the section `admin`: where metrics and health are served over HTTP.
type Admin struct {
	Listen adminAddress `yaml:"listen"`
	Mode   fileMode     `yaml:"mode"` // of a Unix socket, like Group
	Group  string       `yaml:"group"`
	Pprof  onOff        `yaml:"pprof"`
	// QueueLabels limits how many queues that no config names have their own metrics.
	QueueLabels int `yaml:"queue_labels"`
}

// adminAddress is the path of a Unix socket, or HOST:PORT. The empty address disables the
// listener.
type adminAddress string

var errAdminPlace = errors.New("write a port (9464: on 127.0.0.1 alone), HOST:PORT, or the path of a Unix socket with a / in it")

func (p *adminAddress) parse(s string) error {
	if s == "" || strings.Contains(s, "/") {
		*p = adminAddress(s)
		return nil
	}
	host, port := "", s
	if strings.Contains(s, ":") {
		var err error
		if host, port, err = net.SplitHostPort(s); err != nil {
			return fmt.Errorf("%q is not an address: %w", s, errAdminPlace)
		}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is not an address: %w", s, errAdminPlace)
	}
	*p = adminAddress(net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)) // the default is not reachable from other hosts
	return nil
}

// IsUnix reports whether p is the path of a Unix socket.
func (p adminAddress) IsUnix() bool { return strings.Contains(string(p), "/") }

// isPublic reports whether other hosts can connect to p.
func (p adminAddress) isPublic() bool {
	host, _, err := net.SplitHostPort(string(p))
	if p == "" || p.IsUnix() || err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host != "localhost" && (ip == nil || !ip.IsLoopback())
}

func (c Admin) check(all *Config, bad func(path, format string, args ...any)) {
	if c.Listen.IsUnix() && slices.ContainsFunc(all.Listen, func(l listenConfig) bool { return samePath(l.Socket, string(c.Listen)) }) {
		bad("admin.listen", "%s is a socket that workers connect to: it needs one of its own", c.Listen)
	}
	checkGroup("admin", c.Group, bad)
	if c.QueueLabels < 0 || c.QueueLabels > 100_000 {
		bad("admin.queue_labels", "%d is outside 0 to 100000", c.QueueLabels)
	}
	if c.Listen == "" && bool(c.Pprof) {
		bad("admin.pprof", "it needs an admin.listen to be served at")
	}
}

// BridgeSocket returns the Unix socket to listen on.
func (c Admin) BridgeSocket() unixsocket.Config {
	return unixsocket.Config{Path: string(c.Listen), Mode: fs.FileMode(c.Mode), Group: c.Group}
}

// Advice returns the warning of `qsidecar check` about the listener, and its fix. Both are
// empty if there is none.
func (c Admin) Advice() (text, do string) {
	switch {
	case c.Listen.isPublic() && bool(c.Pprof):
		return fmt.Sprintf("any client that reaches %s can take profiles and dumps of this process (admin.pprof) without authentication", c.Listen),
			"switch pprof off, or listen on 127.0.0.1 or a Unix socket"
	case c.Listen.isPublic():
		return fmt.Sprintf("other hosts can read the metrics, with the names of queues, at %s: the endpoint has no authentication", c.Listen),
			"see that only the monitoring gets there, or listen on 127.0.0.1 or a Unix socket"
	}
	return "", ""
}
