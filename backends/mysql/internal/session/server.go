package session

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/product"
)

// Server holds what the server reports about itself.
type Server struct {
	Text         string // the version as the server writes it
	Maria        bool
	Version      int  // 80013, 100603
	SkipLocked   bool // it has FOR UPDATE SKIP LOCKED
	Galera       bool // it is a node of a Galera cluster
	MultiPrimary bool // it is a member of a replication group in which all members accept writes
}

// Name returns the product and its version.
func (s Server) Name() string {
	if s.Maria {
		return "MariaDB " + s.Text
	}
	return "MySQL " + s.Text
}

// SeveralWriters reports whether other nodes of a cluster can change the same rows. Then a change that arrives from another node ends the
// transactions that conflict with it, with the error for a deadlock.
func (s Server) SeveralWriters() bool { return s.Galera || s.MultiPrimary }

var versionForm = regexp.MustCompile(`^(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)`)

// parseVersion parses a version, and returns an error if it is too old. MariaDB has SKIP LOCKED since 10.6.0.
func parseVersion(text string, maria bool) (Server, error) {
	m := versionForm.FindStringSubmatch(text)
	if m == nil {
		return Server{}, fmt.Errorf("the server's version is %q, which isn't one of MySQL or MariaDB", text)
	}
	v := Server{Text: text, Maria: maria}
	for _, part := range m[1:] {
		n, err := strconv.Atoi(part)
		if err != nil {
			return Server{}, fmt.Errorf("the server's version is %q: %w", text, err)
		}
		v.Version = 100*v.Version + n
	}
	oldest, word := 80013, "MySQL 8.0.13"
	v.SkipLocked = true
	if maria {
		oldest, word = 100300, "MariaDB 10.3"
		v.SkipLocked = v.Version >= 100600
	}
	if v.Version < oldest {
		return Server{}, fmt.Errorf("it is %s: %s or newer is needed", v.Name(), word)
	}
	return v, nil
}

// ReadServer queries the server's product and version, and sets the settings of all later connections accordingly.
func (d *Dialer) ReadServer(ctx context.Context) error {
	c, err := d.Dial(ctx, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if d.Server, err = readServer(ctx, c); err != nil {
		return fmt.Errorf("%s: %w", d.Place(), err)
	}
	d.settings()
	return nil
}

// readServer queries a server's product, version and kind of cluster.
func readServer(ctx context.Context, c *Conn) (v Server, err error) {
	var text, comment string
	variables := map[string]string{}
	// vtgate answers this query itself only if it is alone in its packet. Others go to a MySQL behind it.
	if err := c.Each(ctx, func(r *Result) { text = r.Text(0) }, "SELECT @@version"); err != nil {
		return v, err
	}
	var p Script
	p.Each(func(r *Result) { comment = r.Text(0) }, "SELECT @@version_comment")
	p.Each(func(r *Result) { variables[r.Text(0)] = r.Text(1) },
		"SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode')")
	if err := c.Run(ctx, &p); err != nil {
		return v, err
	}
	if err := product.Check("MySQL", text+" "+comment); err != nil {
		return v, err
	}
	if v, err = parseVersion(text, strings.Contains(strings.ToLower(text+" "+comment), "mariadb")); err != nil {
		return v, err
	}
	v.Galera = variables["wsrep_on"] == "ON"
	v.MultiPrimary = variables["group_replication_group_name"] != "" && variables["group_replication_single_primary_mode"] == "OFF"
	return v, nil
}

// checkServer returns an error if the server needs other statements or settings than the one that ReadServer has read. It can have
// become a node of a cluster that has several writers, or the address can lead to another product.
func (d *Dialer) checkServer(ctx context.Context, c *Conn) error {
	was := d.Server
	if was.Text == "" {
		return nil // this connection is that of ReadServer
	}
	is, err := readServer(ctx, c)
	switch {
	case err != nil:
		return err
	case is.Maria != was.Maria, is.Galera && !was.Galera, is.MultiPrimary && !was.MultiPrimary, was.SkipLocked && !is.SkipLocked:
		return backends.Unavailable(fmt.Errorf("%s: the server is %s now, and was %s when this program opened the database: restart this program", d.Place(), is.kind(), was.kind()))
	}
	return nil
}

// kind names what statements depend on.
func (s Server) kind() string {
	text := s.Name()
	if s.Galera {
		text += " in a Galera cluster"
	}
	if s.MultiPrimary {
		text += " in a group with several primaries"
	}
	return text
}

// basic are the settings that every version of both products has, and the first connection needs, too. With them a session doesn't depend
// on the defaults of the server, the user or a proxy.
func basic() map[string]string {
	return map[string]string{
		"autocommit":               "1",
		"completion_type":          "'NO_CHAIN'",
		"time_zone":                "'+00:00'",
		"sql_mode":                 "'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_ZERO_DATE,NO_ZERO_IN_DATE'",
		"innodb_lock_wait_timeout": strconv.Itoa(int(LockWait.Seconds())),
		"lock_wait_timeout":        strconv.Itoa(int(SchemaWait.Seconds())),
		"sql_safe_updates":         "0",
		"sql_select_limit":         "18446744073709551615",
		"sql_big_selects":          "1",
		"sql_auto_is_null":         "0",
		"foreign_key_checks":       "1",
		"unique_checks":            "1",
		"max_sort_length":          "1024",
	}
}

// settings sets the session variables of every connection.
func (d *Dialer) settings() {
	idle := cmp.Or(d.Idle, idleEnds)
	p := basic()
	for _, name := range []string{"wait_timeout", "net_write_timeout", "net_read_timeout"} {
		p[name] = strconv.Itoa(int(idle.Seconds()))
	}
	if d.Server.Maria {
		p["tx_isolation"] = "'READ-COMMITTED'"
		p["idle_transaction_timeout"] = strconv.Itoa(int(idle.Seconds() * 3 / 4))
		p["max_statement_time"] = "0"
		p["sort_buffer_size"] = "GREATEST(@@GLOBAL.sort_buffer_size, 262144)" // less can be too little for one row
		if d.Server.Version >= 100603 {
			p["tx_read_only"] = "0"
		}
	} else {
		p["transaction_isolation"] = "'READ-COMMITTED'"
		p["transaction_read_only"] = "0"
		p["max_execution_time"] = "0"
	}
	// Reads see what other nodes have committed.
	if d.Server.Galera {
		p["wsrep_sync_wait"] = "1"
	}
	if d.Server.MultiPrimary {
		p["group_replication_consistency"] = "'BEFORE'"
	}
	d.Config.Params = p
	// The character set of statements and answers.
	d.Config.Collation = "utf8mb4_bin"
}
