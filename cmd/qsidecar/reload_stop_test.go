package main

import (
	"net"
	"strings"
	"testing"
)

// TestStopEndsAReload checks that an unreachable database in a reload doesn't delay the
// stop, also if a client requested the reload. The canceled reload isn't an error of the
// config.
func TestStopEndsAReload(t *testing.T) {
	x := startWithoutWatch(t, one)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dialled := make(chan net.Conn, 10) // more than the test needs
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			dialled <- conn
		}
	}()
	x.write(x.file, one+"databases: {main: {url: 'postgres://app@"+silent.Addr().String()+"/app'}}\n")
	answer := make(chan result, 1)
	go func() { answer <- x.run("reload") }()
	defer (<-dialled).Close()
	if code := x.r.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if r := <-answer; !strings.Contains(r.err, "the sidecar is stopping") {
		t.Errorf("the reload was answered %+v", r)
	}
	if log := x.r.errOut.String(); strings.Contains(log, "event=config_reload_failed") {
		t.Errorf("the log has\n%s", log)
	}
}
