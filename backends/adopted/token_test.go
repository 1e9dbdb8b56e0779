package adopted_test

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
)

// TestOthersToken: check reports rows that show the sidecar's token without a claim of a sidecar, and
// no others.
func TestOthersToken(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		ids := map[adopted.Role][]string{adopted.ID: {"id"}}
		k := on.newKit(t, `CREATE TABLE things (id int PRIMARY KEY, status int NOT NULL DEFAULT 1, pid varchar(9) NULL);
			CREATE TABLE mails (id int PRIMARY KEY, taken int NULL);
			INSERT INTO things (id) VALUES (1), (2), (3), (4); INSERT INTO mails (id) VALUES (1), (2), (3), (4)`, map[string]adopted.Table{
			"things": {Name: "things", Token: &adopted.Token{Column: "pid", Text: "sidecar"},
				Columns: map[adopted.Role][]string{adopted.ID: {"id"}, adopted.State: {"status"}},
				States:  map[backends.State]adopted.Value{backends.StateReady: {Text: "1"}, backends.StateClaimed: {Text: "2"}, backends.StateDone: {Text: "3"}}},
			"mails": {Name: "mails", Columns: ids, Token: &adopted.Token{Column: "taken", From: 900, To: 999}, OnAck: adopted.Delete},
		})
		for _, q := range []string{"things", "mails"} {
			k.write(backends.Ack{Leases: leases(k.one(q))}, 0)
			k.write(backends.Nack{Leases: leases(k.one(q)), Error: "x"}, 0)
			k.one(q)
		}
		k.sql("UPDATE things SET status = 2, pid = '7' WHERE id = 4; UPDATE mails SET taken = 899 WHERE id = 4")
		if said := k.findings("token"); said != "" {
			t.Errorf("of its own: %s", said)
		}
		k.sql("UPDATE things SET pid = 'sidecar' WHERE id = 4; UPDATE mails SET taken = 999 WHERE id = 4")
		said := k.findings("token")
		if strings.Count(said, "claimed them (4)") != 2 || !strings.Contains(said, "queues.things.token: ") || !strings.Contains(said, "queues.mails.token: ") {
			t.Errorf("of others: %q", said)
		}
	})
}
