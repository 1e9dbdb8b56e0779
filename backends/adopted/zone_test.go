package adopted_test

import (
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestOwnersTimes: if the server fills the table's times in, by a default or at each update, rows that the
// sidecar writes also have them in the owner's zone.
func TestOwnersTimes(t *testing.T) {
	onEach(t, func(t *testing.T, on *product) {
		touched, zone := " DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", "SET time_zone = @@global.time_zone; "
		if on.name == "PostgreSQL" {
			touched, zone = "", "" // it has no such columns
		}
		k := on.newKit(t, `CREATE TABLE mails (id int PRIMARY KEY, state int NOT NULL DEFAULT 0, born timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, made `+on.zoneless+` DEFAULT CURRENT_TIMESTAMP,
			changed `+on.zoneless+touched+`);
			CREATE TABLE sent (id int, made `+on.zoneless+`, changed `+on.zoneless+`, moved `+on.zoneless+` DEFAULT CURRENT_TIMESTAMP)`, map[string]mapping.Table{"mails": {
			Name:    "mails",
			Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.Payload: {"id"}, mapping.State: {"state"}, mapping.CreatedAt: {"made"}},
			States:  map[backends.State]mapping.Value{backends.StateReady: {Text: "0"}, backends.StateClaimed: {Text: "1"}},
			OnAck:   mapping.Archive, Archive: "sent",
		}})
		k.sql(zone + "SELECT 1")
		near := func(column string) string {
			return "CASE WHEN " + column + " BETWEEN localtimestamp - interval '10' minute AND localtimestamp THEN 'now' ELSE concat('not ', localtimestamp, ': ', " + column + ") END"
		}
		for _, id := range []string{"1", "2"} {
			k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "mails", Payload: []byte(id)}}}, 0)
		}
		k.wantRows("SELECT "+near("made")+" FROM mails UNION SELECT "+near("born")+" FROM mails", "now")
		if touched != "" {
			k.wantRows("SELECT DISTINCT "+near("changed")+" FROM mails", "now")
			k.sql("UPDATE mails SET changed = '2020-01-01'")
		}
		job := k.one("mails")
		if touched != "" {
			k.wantRows("SELECT "+near("changed")+" FROM mails WHERE id = 1", "now")
			k.sql("UPDATE mails SET changed = '2020-01-01'")
			k.write(backends.Nack{Leases: leases(job), Error: "x", HasDelay: true}, 0)
			k.wantRows("SELECT "+near("changed")+" FROM mails WHERE id = 1", "now")
			job = k.one("mails")
		}
		k.write(backends.Ack{Leases: leases(job)}, 0)
		k.wantRows("SELECT "+near("made")+" FROM sent UNION SELECT "+near("moved")+" FROM sent", "now")
	})
}
