package mysql

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
)

// server holds what the server reports about itself.
type server struct {
	text    string // the version as the server writes it
	maria   bool
	version int // 80013, 100603
	packet  int64
	skips   bool // it has FOR UPDATE SKIP LOCKED
}

func (v server) name() string {
	if v.maria {
		return "MariaDB " + v.text
	}
	return "MySQL " + v.text
}

var versionForm = regexp.MustCompile(`^(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)`)

// know parses a version, and returns an error if it is too old. MariaDB has SKIP LOCKED since 10.6.0.
func know(text string, maria bool) (server, error) {
	m := versionForm.FindStringSubmatch(text)
	if m == nil {
		return server{}, fmt.Errorf("the server's version is %q, which is no version of MySQL or MariaDB", text)
	}
	v := server{text: text, maria: maria}
	for _, part := range m[1:] {
		n, err := strconv.Atoi(part)
		if err != nil {
			return server{}, fmt.Errorf("the server's version is %q: %w", text, err)
		}
		v.version = 100*v.version + n
	}
	oldest, word := 80013, "MySQL 8.0.13"
	v.skips = true
	if maria {
		oldest, word = 100300, "MariaDB 10.3"
		v.skips = v.version >= 100600
	}
	if v.version < oldest {
		return server{}, fmt.Errorf("it is %s: %s or newer is needed", v.name(), word)
	}
	return v, nil
}

// greet queries the server's product, version and max_allowed_packet.
func (s *Store) greet(ctx context.Context) error {
	ctx, done := s.Bound(ctx)
	defer done()
	c, err := s.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer c.close()
	var text, comment string
	packet := int64(0)
	if err := c.query(ctx, "SELECT VERSION(), @@version_comment, @@max_allowed_packet", nil, []func(r *result) error{func(r *result) error {
		ok, err := r.next()
		if ok {
			text, comment, packet = r.text(0), r.text(1), r.int(2)
		}
		return err
	}}); err != nil {
		return err
	}
	maria := regexp.MustCompile(`(?i)mariadb`).MatchString(text + " " + comment)
	if s.server, err = know(text, maria); err != nil {
		return fmt.Errorf("%s: %w", s.place, err)
	}
	s.server.packet = packet
	return nil
}

// settings sets the session variables of every connection. Sessions don't depend on the defaults of the
// server, the user or a proxy.
func (s *Store) settings() {
	p := map[string]string{
		"autocommit":               "1",
		"completion_type":          "'NO_CHAIN'",
		"time_zone":                "'+00:00'",
		"sql_mode":                 "'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_ZERO_DATE,NO_ZERO_IN_DATE'",
		"innodb_lock_wait_timeout": strconv.Itoa(int(lockWait.Seconds())),
		"lock_wait_timeout":        strconv.Itoa(int(schemaWait.Seconds())),
		"wait_timeout":             strconv.Itoa(int(idleEnds.Seconds())),
		"net_write_timeout":        strconv.Itoa(int(idleEnds.Seconds())),
		"net_read_timeout":         strconv.Itoa(int(idleEnds.Seconds())),
		"sql_safe_updates":         "0",
		"sql_select_limit":         "18446744073709551615",
		"sql_big_selects":          "1",
		"sql_auto_is_null":         "0",
		"foreign_key_checks":       "1",
		"unique_checks":            "1",
	}
	if s.server.maria {
		p["tx_isolation"] = "'READ-COMMITTED'"
		p["idle_transaction_timeout"] = "15"
		p["max_statement_time"] = "0"
		if s.server.version >= 100603 {
			p["tx_read_only"] = "0"
		}
	} else {
		p["transaction_isolation"] = "'READ-COMMITTED'"
		p["transaction_read_only"] = "0"
		p["max_execution_time"] = "0"
	}
	s.config.Params = p
	s.config.MaxAllowedPacket = int(s.server.packet)
	// The character set of statements and answers.
	s.config.Collation = "utf8mb4_bin"
}

// writable returns an error if the server is a replica. A service address can lead to a replica until
// another server takes over. An account that is exempt from read_only could write to it, and a replica
// that has not replayed everything can't show whether a commit happened.
func (s *Store) writable(ctx context.Context, c *conn) error {
	if s.o.Look {
		return nil
	}
	readOnly := false
	err := c.query(ctx, "SELECT CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF') OR @@GLOBAL.innodb_read_only, "+
		"CONCAT_WS('/', @@hostname, @@port, @@server_id, @@datadir)", nil, []func(r *result) error{func(r *result) error {
		ok, err := r.next()
		if ok {
			readOnly, c.server = r.int(0) != 0, r.text(1)
		}
		return err
	}})
	if err == nil && readOnly {
		err = backends.Unavailable(fmt.Errorf("%s: the server is read-only, as replicas are", s.place))
	}
	return err
}
