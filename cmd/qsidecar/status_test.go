package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestStatusShowsWholeErrors checks that long errors are complete, because the reason is at
// their end.
func TestStatusShowsWholeErrors(t *testing.T) {
	const why = "database unavailable: postgres://app@db.internal.example:5432/app: failed to connect to `user=app database=app`:\n" +
		"\t10.0.0.7:5432 (db.internal.example): failed SASL auth: FATAL: password authentication failed for user \"app\" (SQLSTATE 28P01)"
	var out bytes.Buffer
	st := &protocol.Status{Generation: 1, Databases: []protocol.DatabaseStatus{
		{Name: "away", Error: why, HeartbeatAgeMS: 90_000}, {Name: "main", Engine: "sqlite", Version: "3.53.4", Address: "/q.db", HeartbeatAgeMS: 10},
		{Name: "events", Engine: "postgres", Version: "18.4", Address: "postgres://app@a,b/app", Cluster: "primary of 2, timeline 3, synchronous", HeartbeatAgeMS: 10},
	}}
	if err := (&app{out: &out}).showStatus("qsidecar/1", st); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ERROR, see below\n", "\ndatabase away: " + why + "\n", "ok\n", "\ndatabase events: primary of 2, timeline 3, synchronous\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not show %q:\n%s", want, out.String())
		}
	}
}

// statusLine is the output of status --json.
type statusLine struct {
	Generation  int
	ConfigError string `json:"config_error"`
	FailedAt    int64  `json:"failed_at"`
	Admin       string
	Databases   []databaseLine
	Sessions    []sessionLine
	Sockets     []struct{ Path string }
}

type databaseLine struct {
	Name, Error, Address string
	Draining             bool
	Leases               int
	PoolMax              *int `json:"pool_max"`
}

type sessionLine struct {
	Worker string
	UID    *int
	PID    *int
	Leases int
	Queues []struct {
		Queue     string
		Leases    int
		OldestJob string `json:"oldest_job"`
	}
}

func (r *reloading) status() (st statusLine) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.must(0, "status", "--json")), &st); err != nil {
		r.t.Fatal(err)
	}
	return st
}

func TestStatusShowsClaimedJobs(t *testing.T) {
	x := startWatching(t, false, "queues: {mail: {}, sms: {}}\n")
	st := x.status()
	if len(st.Sessions) != 1 || st.Sessions[0].UID == nil || *st.Sessions[0].UID != os.Getuid() || *st.Sessions[0].PID != os.Getpid() ||
		!strings.HasPrefix(st.Sessions[0].Worker, "qsidecar-cli@") || len(st.Sockets) != 1 || st.Sockets[0].Path != x.socket() {
		t.Errorf("status: %+v", st)
	}
	if out := x.must(0, "status"); !strings.Contains(out, "config generation 1") || !strings.Contains(out, "ok\n") {
		t.Errorf("status shows\n%s", out)
	}
	oldest := strings.TrimSpace(x.must(0, "enqueue", "mail", "a"))
	x.must(0, "enqueue", "mail", "b")
	x.must(0, "enqueue", "sms", "c")
	conn, err := net.Dial("unix", x.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewScanner(conn)
	for _, request := range []string{`{"op":"hello","worker":"ada"}`, `{"op":"claim","queue":"mail"}`, `{"op":"claim","queues":["mail","sms"],"max":2}`} {
		if _, err := conn.Write([]byte(request + "\n")); err != nil {
			t.Fatal(err)
		}
		if !answers.Scan() || !strings.Contains(answers.Text(), `"ok":true`) {
			t.Fatalf("%s: %s %v", request, answers.Text(), answers.Err())
		}
	}
	st = x.status()
	i := slices.IndexFunc(st.Sessions, func(s sessionLine) bool { return s.Worker == "ada" })
	if i < 0 {
		t.Fatalf("status: %+v", st)
	}
	leases := map[string]int{}
	for _, l := range st.Sessions[i].Queues {
		leases[l.Queue] = l.Leases
		if l.Queue == "mail" && l.OldestJob != oldest {
			t.Errorf("the oldest lease is on job %s of mail, want %s", l.OldestJob, oldest)
		}
	}
	if !maps.Equal(leases, map[string]int{"mail": 2, "sms": 1}) || st.Sessions[i].Leases != 3 || st.Databases[0].Leases != 3 || st.Databases[0].PoolMax == nil {
		t.Errorf("status: %+v", st)
	}
	if out := x.must(0, "status"); !strings.Contains(out, "mail:2") || !strings.Contains(out, "sms:1") || !strings.Contains(out, "POOL") {
		t.Errorf("status shows\n%s", out)
	}
}
