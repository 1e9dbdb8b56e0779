package main

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

// adminConfig is where metrics and health are served, over HTTP.
type adminConfig struct {
	Listen adminPlace `yaml:"listen"`
	Mode   fileMode   `yaml:"mode"` // of a Unix socket, as its group
	Group  string     `yaml:"group"`
	Pprof  onOff      `yaml:"pprof"`
	// queues that clients made up and that have metrics of their own
	QueueLabels int `yaml:"queue_labels"`
}

// adminPlace is an address: the path of a Unix socket, or HOST:PORT. Empty: none.
type adminPlace string

var errAdminPlace = errors.New("write a port (9464: on 127.0.0.1 alone), HOST:PORT, or the path of a Unix socket with a / in it")

func (p *adminPlace) parse(s string) error {
	if s == "" || strings.Contains(s, "/") {
		*p = adminPlace(s)
		return nil
	}
	host, port := "", s
	if strings.Contains(s, ":") {
		var err error
		if host, port, err = net.SplitHostPort(s); err != nil {
			return fmt.Errorf("%q is no address: %w", s, errAdminPlace)
		}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is no address: %w", s, errAdminPlace)
	}
	*p = adminPlace(net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)) // whoever wants another one says which
	return nil
}

// unix reports whether it is a socket's path.
func (p adminPlace) unix() bool { return strings.Contains(string(p), "/") }

// open reports whether other hosts may reach it.
func (p adminPlace) open() bool {
	host, _, err := net.SplitHostPort(string(p))
	if p == "" || p.unix() || err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host != "localhost" && (ip == nil || !ip.IsLoopback())
}

func (c adminConfig) check(all *config, bad func(path, format string, args ...any)) {
	if c.Listen.unix() && slices.ContainsFunc(all.Listen, func(l listenConfig) bool { return samePath(l.Socket, string(c.Listen)) }) {
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

// socket is the place as one that is listened on.
func (c adminConfig) socket() unixsocket.Config {
	return unixsocket.Config{Path: string(c.Listen), Mode: fs.FileMode(c.Mode), Group: c.Group}
}

// advice is what check says of it; empty: nothing.
func (c adminConfig) advice() (text, do string) {
	switch {
	case c.Listen.open() && bool(c.Pprof):
		return fmt.Sprintf("whoever reaches %s can take profiles and dumps of this process (admin.pprof), unasked", c.Listen),
			"switch pprof off, or listen on 127.0.0.1 or a Unix socket"
	case c.Listen.open():
		return fmt.Sprintf("other hosts can read the metrics, with the names of queues, at %s: nobody is asked who he is", c.Listen),
			"see that only the monitoring gets there, or listen on 127.0.0.1 or a Unix socket"
	}
	return "", ""
}
