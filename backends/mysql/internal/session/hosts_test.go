package session

import (
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// TestOrder: hosts that failed since a connection was accepted come after those that were not tried. The time of one heartbeat can
// be too short for all hosts of an address, and the next one must not begin with the same hosts.
func TestOrder(t *testing.T) {
	t.Parallel()
	config := &mysql.Config{Net: "tcp", Addr: "a,b,c,d"}
	d := Dialer{Config: config}
	expect := func(want string) {
		t.Helper()
		all, _ := d.hosts.inOrder(config)
		if got := strings.Join(all, ""); got != want {
			t.Errorf("the hosts are tried as %s, want %s", got, want)
		}
	}
	expect("abcd")
	d.hosts.found("b", 0)
	expect("bacd")
	d.hosts.failed("b")
	expect("bacd") // the last good one can be back soon
	d.Suspect("b")
	expect("acdb")
	d.hosts.failed("a")
	d.hosts.failed("c")
	expect("dacb")
	d.hosts.found("d", d.hosts.moves)
	expect("dacb")
	d.Suspect("d")
	expect("abcd") // a new primary can be any of them
}
