package session

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/qsidecar/qsidecar/backends/internal/dial"
)

const (
	// LockWait is how long a statement waits for a row's lock. Then the transaction is retried.
	LockWait = 5 * time.Second

	// SchemaWait is how long a statement waits for a table that another session alters.
	SchemaWait = 10 * time.Second

	// idleEnds is how long the server keeps a session that sends nothing, or that doesn't read the
	// server's answers. If a host vanishes without closing its connections, its sessions keep their locks
	// until then. idleEnds is shorter than the default sidecar_timeout, after which other sidecars reap the
	// host's jobs.
	idleEnds = 20 * time.Second

	// PacketReserve is how much of a packet is not payload.
	PacketReserve = 64 << 10
)

// Configure parses the address. A password that is not empty replaces the URL's. Errors lack the password.
func Configure(address, password string, log *slog.Logger) (*mysql.Config, error) {
	address, more := cutHosts(address)
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the address of the MySQL database isn't a URL: write mysql://USER@HOST/DATABASE") // the error of url contains the password
	}
	c := mysql.NewConfig()
	c.User, c.DBName = u.User.Username(), strings.TrimPrefix(u.Path, "/")
	c.Passwd, _ = u.User.Password()
	if password != "" {
		c.Passwd = password
	}
	if u.Scheme != "mysql" || c.User == "" || c.DBName == "" || strings.Contains(c.DBName, "/") {
		return nil, errors.New("the address of a MySQL database is written mysql://USER@HOST/DATABASE")
	}
	c.Net, c.Addr = "tcp", net.JoinHostPort(cmp.Or(u.Hostname(), "127.0.0.1"), cmp.Or(u.Port(), "3306"))
	for _, host := range more {
		h, err := url.Parse("mysql://" + host)
		if err != nil || h.Host == "" || h.Host != host {
			return nil, fmt.Errorf("the address of the MySQL database has the host %q: write mysql://USER@HOST:PORT,HOST:PORT/DATABASE", host)
		}
		c.Addr += "," + net.JoinHostPort(h.Hostname(), cmp.Or(h.Port(), "3306"))
	}
	q := u.Query()
	if s := q.Get("socket"); s != "" {
		if len(more) > 0 {
			return nil, errors.New("the address of the MySQL database has a socket and several hosts: a socket leads to one server")
		}
		c.Net, c.Addr = "unix", s
	}
	if err := secure(c, q.Get("tls"), q.Get("ca"), u.Hostname()); err != nil {
		return nil, err
	}
	for key := range q {
		if key != "socket" && key != "tls" && key != "ca" {
			return nil, fmt.Errorf("the address of the MySQL database has the parameter %q: there are socket, tls and ca", key)
		}
	}
	c.Timeout = dial.Timeout
	c.Logger = driverLogger{log}
	c.ConnectionAttributes = "program_name:qsidecar"
	c.MultiStatements, c.InterpolateParams, c.ClientFoundRows = true, true, true
	c.Params = basic()
	c.CheckConnLiveness = false // each call retries
	return c, nil
}

func secure(c *mysql.Config, mode, ca, host string) error {
	ip := net.ParseIP(host)
	near := c.Net == "unix" || host == "" || host == "localhost" || ip != nil && ip.IsLoopback()
	switch mode {
	case "true", "skip-verify", "preferred", "false":
		c.TLSConfig = mode
	case "":
		c.TLSConfig = map[bool]string{true: "false", false: "preferred"}[near]
	default:
		return fmt.Errorf("the address of the MySQL database has tls=%s: write preferred, true, skip-verify or false", mode)
	}
	if ca == "" {
		return nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return fmt.Errorf("the certificates to trust, ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no certificate", ca)
	}
	c.TLS = &tls.Config{RootCAs: pool, ServerName: host, MinVersion: tls.VersionTLS12}
	return nil
}

// driverLogger is the driver's logger.
type driverLogger struct{ log *slog.Logger }

func (d driverLogger) Print(v ...any) {
	d.log.Debug("MySQL driver message", "event", "mysql_driver_message", "text", fmt.Sprint(v...))
}

// Place returns the address without secrets.
func Place(c *mysql.Config) string {
	if c.Net == "unix" {
		return fmt.Sprintf("mysql://%s@localhost/%s?socket=%s", c.User, c.DBName, c.Addr)
	}
	return fmt.Sprintf("mysql://%s@%s/%s", c.User, c.Addr, c.DBName)
}
