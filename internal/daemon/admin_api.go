package daemon

import (
	"context"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/qsidecar/qsidecar/internal/adminapi"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/internal/web"
)

// adminRules returns the rules of the API and the page. It reads the files of the tokens.
func adminRules(c *config.Config) (adminapi.Rules, error) {
	tokens, err := c.Admin.ReadTokens()
	if err != nil {
		return adminapi.Rules{}, err
	}
	var users []adminapi.User
	for _, name := range slices.Sorted(maps.Keys(tokens)) {
		users = append(users, adminapi.NewUser(name, tokens[name]))
	}
	host := c.Admin.LoopbackHost()
	return adminapi.Rules{
		Off:          c.Admin.IsOff(),
		Write:        c.Admin.CanWrite(),
		Users:        users,
		HidePayloads: c.Admin.HidesPayloads(),
		MaxFrame:     int(c.MaxFrame),
		AnyHost:      host == "", // a browser can't open a Unix socket, and elsewhere every request needs the token
		Host:         host,
		Origin:       c.Admin.BaseURL.Origin(),
		Prefix:       c.Admin.BaseURL.Prefix(),
	}, nil
}

// pageChanges converts the changes that the API lists for the page.
func pageChanges(all []adminapi.Change) []web.Change {
	list := make([]web.Change, len(all))
	for i := range all {
		list[i] = web.Change(all[i])
	}
	return list
}

// serveStream serves a session of the API.
func (a *admin) serveStream(ctx context.Context, in io.Reader, out io.Writer) error {
	if err := a.started(); err != nil {
		return err
	}
	return a.bridge.Load().ServeStream(ctx, in, out)
}

// peerAddr is the address of a Unix socket's client: its user and process.
type peerAddr struct{ *unixsocket.Peer }

// Network implements net.Addr.
func (peerAddr) Network() string { return "unix" }

// String implements net.Addr.
func (p peerAddr) String() string {
	uid, pid := "unknown", "unknown"
	if p.IsKnown() {
		uid = strconv.FormatUint(uint64(p.UID), 10)
	}
	if p.PID != 0 {
		pid = strconv.FormatInt(int64(p.PID), 10)
	}
	return "uid " + uid + " pid " + pid
}

// clientAddr returns the address of a connection's client, for the log.
func clientAddr(conn net.Conn) net.Addr {
	if _, ok := conn.(*net.UnixConn); ok {
		if peer, err := unixsocket.NewConn(conn, nil).Peer(); err == nil {
			return peerAddr{peer}
		}
	}
	return conn.RemoteAddr()
}
