package session

import (
	"fmt"
	"strings"
	"sync"

	"github.com/qsidecar/qsidecar/backends"
)

// sources finds out an old source that returns and accepts writes: it has no transaction of the source that replaced it. A replica
// that was promoted has some, unless it lost all of them.
//
// A Dialer does not compare all hosts before it uses the first one. A replica that accepts writes, and has a transaction of its own, would
// pass for the new source. To see that it still replicates needs a privilege that the account rarely has.
type sources struct {
	mu     sync.Mutex
	newest string // names the last source that connections led to, once it had transactions of its own
}

// sourceSQL returns the expressions for a server's name in the ids of its transactions, and for the ids of all that it has. Without
// ids, both are empty. Members of a group write their transactions under the group's name. Galera nodes can have ids of their own
// for the same transactions.
func (d *Dialer) sourceSQL() string {
	switch {
	case !d.Several() || d.Server.Text == "" || d.Server.Galera:
		return "'', ''"
	case d.Server.Maria:
		return "CONCAT('-', @@GLOBAL.server_id, '-'), CONCAT_WS(',', @@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_slave_pos)"
	}
	return "@@GLOBAL.server_uuid, @@GLOBAL.gtid_executed"
}

// check records a source, or refuses an old one.
func (s *sources) check(d *Dialer, host, name, transactions string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest != "" && !strings.Contains(transactions, s.newest) {
		if d.Refused != nil {
			d.Refused(host)
		}
		return backends.Unavailable(fmt.Errorf("%s: the server at %s has no transaction of the source that replaced it: make it a replica, or restart this program to use it", d.Place(), host))
	}
	if name != "" && strings.Contains(transactions, name) {
		s.newest = name
	}
	return nil
}
