package adopted_test

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

func (k *kit) command(c backends.Command, want int64) {
	k.Helper()
	c.Queue = cmp.Or(c.Queue, "q")
	if n, _, err := k.Command(k.Context(), c); err != nil || n != want {
		k.Errorf("%+v: %d, %v; want %d", c, n, err, want)
	}
}

// peek is the result of a Peek, in short.
func (k *kit) peek(p backends.Peek, want string) []backends.View {
	k.Helper()
	p.Queue, p.Max = "q", max(p.Max, 1)
	views, err := k.Peek(k.Context(), p)
	got := ""
	for _, v := range views {
		got += fmt.Sprintf("%s:%s:%d ", v.ID, v.State, v.Attempt)
	}
	if err != nil || got != want {
		k.Errorf("%+v: %q, %v; want %q", p, got, err, want)
	}
	return views
}

// TestPeekAndCommands runs on a table with a key and a state, and on one with a key, a number of
// failures and a token.
func TestPeekAndCommands(t *testing.T) {
	t.Parallel()
	state := mapping.Table{Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: {"payload"}}, MaxAttempts: 3,
		States: map[backends.State]mapping.Value{backends.StateReady: {Null: true}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}}}
	token := mapping.Table{Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.Attempts: {"fails"}, mapping.Payload: {"payload"}}, MaxAttempts: 3,
		Token: &mapping.Token{Column: "state", Text: "77"}, OnAck: mapping.Delete}
	for name, m := range map[string]mapping.Table{"state": state, "token": token} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKit(t, `CREATE TABLE q (id int PRIMARY KEY, state int, fails int NOT NULL DEFAULT 0, payload text DEFAULT 'text');
				INSERT INTO q SELECT generate_series(1, 6)`, map[string]mapping.Table{"q": m})
			jobs := k.claim("q", 4)
			k.write(backends.Nack{Leases: leases(jobs[0]), Error: "dead", Dead: true}, 0)
			k.write(backends.Nack{Leases: leases(jobs[1]), Error: "later"}, 0)
			k.write(backends.Ack{Leases: leases(jobs[2])}, 0)
			k.sqlElsewhere("UPDATE q SET state = 1 WHERE id = 6") // as one of its own consumers does
			k.peek(backends.Peek{State: backends.StateReady, Max: 9}, "5:ready:0 ")
			dead := map[string]string{"state": "1:dead:1 ", "token": "1:dead:3 "}[name]
			if v := k.peek(backends.Peek{State: backends.StateDead, Max: 9}, dead); len(v) != 1 || string(v[0].Payload) != "text" || len(v[0].Failures) != 1 || v[0].Failures[0].Message != "dead" {
				t.Errorf("%+v", v)
			}
			if v := k.peek(backends.Peek{State: backends.StateScheduled, Max: 9}, "2:scheduled:1 "); len(v) != 1 || v[0].RunAt.IsZero() {
				t.Errorf("%+v", v)
			}
			claimed := map[string]string{"state": "4:claimed:1 6:claimed:0 ", "token": "4:claimed:0 6:claimed:0 "}[name]
			if v := k.peek(backends.Peek{IDs: []string{"4", "6", "99"}}, claimed); len(v) != 2 || v[0].Worker != "w" || v[1].Worker != "" {
				t.Errorf("%+v", v)
			}
			second := map[string]string{"state": "6:claimed:0 ", "token": "6:claimed:0 "}[name]
			k.peek(backends.Peek{State: backends.StateClaimed, After: "4"}, second)
			if _, err := k.Peek(t.Context(), backends.Peek{Queue: "q", State: backends.StateClaimed, Max: 1, After: "5"}); !errors.Is(err, backends.ErrNoSuchJob) {
				t.Errorf("%v", err)
			}
			if done := map[string]string{"state": "3:done:0 "}[name]; true {
				k.peek(backends.Peek{State: backends.StateDone, Max: 9}, done)
			}
			k.peek(backends.Peek{IDs: []string{"4", "5"}, MaxBytes: 5}, claimed[:len("4:claimed:0 ")])

			k.command(backends.Command{Kind: backends.Delete, IDs: []string{"4", "5", "6"}}, 1) // but not the claimed ones
			k.command(backends.Command{Kind: backends.Reclaim, IDs: []string{"4", "6"}}, 1)
			k.write(backends.Ack{Leases: leases(jobs[3])}, 1)
			k.command(backends.Command{Kind: backends.Retry, All: true}, 1)
			k.peek(backends.Peek{State: backends.StateReady, Max: 9}, "1:ready:0 4:ready:0 ")
			k.command(backends.Command{Kind: backends.Purge, State: backends.StateScheduled}, 1)
			k.command(backends.Command{Kind: backends.Purge, State: backends.StateDead}, 0)
			most := int64(1) // the table's own consumers would not keep a limit
			_, _, err := k.Command(t.Context(), backends.Command{Kind: backends.Limit, Queue: "q", Limits: backends.LimitsChange{MaxClaimed: &most}})
			if _, unsupported := errors.AsType[*backends.UnsupportedError](err); !unsupported {
				t.Errorf("a limit: %v", err)
			}
			left := map[string][]string{"state": {"1", "3", "4", "6"}, "token": {"1", "4", "6"}}[name]
			k.wantRows("SELECT id::text FROM q ORDER BY id", left...)
			k.wantRows("SELECT item FROM qsidecar.qsidecar_leases")
		})
	}
}

// TestChangeAndFind changes the priority and the time of rows that wait, and finds jobs, as far as the table has
// columns for that.
func TestChangeAndFind(t *testing.T) {
	t.Parallel()
	m := mapping.Table{Name: "q", Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: {"payload"}, mapping.Priority: {"prio"}, mapping.RunAt: {"at"}}, MaxAttempts: 3,
		States: map[backends.State]mapping.Value{backends.StateReady: {Null: true}, backends.StateClaimed: {Text: "1"}, backends.StateDone: {Text: "2"}, backends.StateDead: {Text: "3"}}}
	bare := m
	bare.Columns = map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.Payload: {"payload"}}
	bare.Name = "b"
	k := newKit(t, `CREATE TABLE q (id int PRIMARY KEY, state int, prio int NOT NULL DEFAULT 0, at timestamptz, payload text DEFAULT 'text');
		CREATE TABLE b (id int PRIMARY KEY, state int, payload text);
		INSERT INTO q SELECT generate_series(1, 4); INSERT INTO b VALUES (1)`, map[string]mapping.Table{"q": m, "b": bare})
	one, hour, now := int16(1), time.Hour, time.Duration(0)
	claimed := k.claim("q", 1)
	k.command(backends.Command{Kind: backends.Change, IDs: []string{"1", "4"}, Priority: &one}, 1) // not the claimed one
	k.command(backends.Command{Kind: backends.Change, IDs: []string{"2"}, Delay: &hour}, 1)
	k.wantRows("SELECT id || ' ' || prio || ' ' || coalesce(at > now(), false) FROM q ORDER BY id", "1 0 false", "2 0 true", "3 0 false", "4 1 false")
	k.write(backends.Ack{Leases: leases(claimed...)}, 0)
	k.command(backends.Command{Kind: backends.Change, IDs: []string{"2"}, Delay: &now, Priority: &one}, 1)
	if jobs := k.claim("q", 9); len(jobs) != 3 {
		t.Errorf("claimed %+v", jobs)
	}
	for what, c := range map[string]backends.Command{"priority": {Priority: &one}, "time": {Delay: &hour}} {
		c.Kind, c.Queue, c.IDs = backends.Change, "b", []string{"1"}
		if n, _, err := k.Command(t.Context(), c); n != 0 || !errors.As(err, new(*backends.UnsupportedError)) {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
	for what, p := range map[string]backends.Peek{"key": {Key: "k"}, "newest": {State: backends.StateDead, Newest: true}} {
		p.Queue, p.Max = "q", 9
		if _, err := k.Peek(t.Context(), p); !errors.As(err, new(*backends.UnsupportedError)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
