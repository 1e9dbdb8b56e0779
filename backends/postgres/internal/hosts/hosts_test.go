package hosts

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestOrder: hosts that failed since a connection was accepted come after those that were not tried. The time of one heartbeat can
// be too short for all hosts of an address, and the next one must not begin with the same hosts.
func TestOrder(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig("postgres://u@a,b,c,d/db?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	var h Hosts
	dead := map[string]bool{}
	config.DialFunc = func(_ context.Context, _, address string) (net.Conn, error) {
		if dead[address] {
			return nil, errors.New("it doesn't answer")
		}
		c, _ := net.Pipe()
		return c, nil
	}
	h.Watch(&config.Config)
	try := func(host string, accept bool) {
		t.Helper()
		c, err := config.DialFunc(t.Context(), "tcp", host+":5432")
		if err != nil {
			return
		}
		if accept {
			h.Accept(c, "")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		c := config.Copy()
		h.Order(c)
		got := c.Host
		for _, f := range c.Fallbacks {
			got += f.Host
		}
		if got != want {
			t.Errorf("the hosts are tried as %s, want %s", got, want)
		}
	}
	expect("abcd")
	try("b", true)
	expect("bacd")
	dead["b:5432"] = true
	try("b", false)
	expect("bacd") // the last good one can be back soon
	h.Cut("b:5432")
	expect("acdb")
	try("a", false) // it accepted the connection, and then didn't answer the login
	dead["c:5432"] = true
	try("c", false)
	expect("dacb")
	try("d", true)
	expect("dacb")
	h.Cut("d:5432")
	expect("abcd") // a new primary can be any of them
}
