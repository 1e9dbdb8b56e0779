package session

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends"
)

// hostTimeout limits a connection with its login if there are other hosts to try. It is far below the time of a heartbeat.
const hostTimeout = 2 * time.Second

// cutHosts returns the address with its first host only, and the other hosts. net/url accepts one host.
func cutHosts(address string) (first string, more []string) {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return address, nil
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndex(rest[:end], "@") + 1
	hosts := strings.Split(rest[at:end], ",")
	return scheme + "://" + rest[:at] + hosts[0] + rest[end:], hosts[1:]
}

// hosts records which of several hosts to try first.
type hosts struct {
	mu      sync.Mutex
	good    string // the last one that connections led to
	suspect string // a host that stopped answering: the last one to try
}

// inOrder returns the hosts in the order of the tries.
func (h *hosts) inOrder(c *mysql.Config) []string {
	if c.Net == "unix" {
		return []string{c.Addr}
	}
	all := strings.Split(c.Addr, ",")
	h.mu.Lock()
	defer h.mu.Unlock()
	rank := func(host string) int {
		switch host {
		case h.suspect:
			return 2
		case h.good:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(x, y string) int { return rank(x) - rank(y) })
	return all
}

// found records the host of a new connection. It returns the earlier host if that was another one.
func (h *hosts) found(host string) (from string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	from, h.good = h.good, host
	if h.suspect == host {
		h.suspect = ""
	}
	if from == host {
		return ""
	}
	return from
}

// Probe logs in to the host of the present connections. It returns that host if it doesn't answer in time.
func (d *Dialer) Probe(ctx context.Context) (silent string) {
	d.hosts.mu.Lock()
	host := d.hosts.good
	d.hosts.mu.Unlock()
	if host == "" {
		return ""
	}
	c, err := d.dialHost(ctx, nil, host, min(d.Timeout, hostTimeout))
	if err == nil {
		c.Close()
		return ""
	}
	if ctx.Err() != nil || FromServer(err) || backends.IsUnreachable(err) { // it answered
		return ""
	}
	return host
}

// Suspect makes a host that stopped answering the last one to try.
func (d *Dialer) Suspect(host string) {
	d.hosts.mu.Lock()
	defer d.hosts.mu.Unlock()
	d.hosts.suspect = host
}

// Several reports whether the address has several hosts.
func (d *Dialer) Several() bool {
	return d.Config.Net != "unix" && strings.Contains(d.Config.Addr, ",")
}
