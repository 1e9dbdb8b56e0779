package mysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/adoptedtest"
	"github.com/qsidecar/qsidecar/backends/mysql"
	"github.com/qsidecar/qsidecar/backends/mysql/diagnose"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestLocalTimes checks DATETIME columns of adopted tables while the clock of the server's zone changes.
func TestLocalTimes(t *testing.T) {
	mysql.OwnServers(t, func(t *testing.T, kind testserver.Kind) {
		m, err := testserver.StartMySQL(t.Context(), kind, testserver.Options{Own: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
		})
		for i, change := range adoptedtest.Changes[:3] { // zoneSQL makes the last one like the first, apart from the offsets
			t.Run(change.Zone+change.At.Format(" January"), func(t *testing.T) {
				name := m.Database(t)
				must := func(text string) { mysql.Must(t, m, name, text) }
				for _, text := range zoneSQL(t, 100+i, change) {
					must(text)
				}
				must("CREATE TABLE clock (at DATETIME(6) NOT NULL)")
				must("INSERT INTO clock VALUES (UTC_TIMESTAMP())")
				o := mysql.WithClock(mysql.Options{URL: m.URL(name)}, "(SELECT at FROM clock)")
				adoptedtest.LocalTimes(t, change, adoptedtest.Server{
					Open: func() backends.Engine { return diagnose.New(mysql.OpenStore(t, o)) }, SQL: must, Type: "datetime",
					Clock: func(at time.Time) { must("UPDATE clock SET at = '" + at.Format("2006-01-02 15:04:05") + "'") },
				})
			})
		}
	})
}

// zoneSQL makes the server's zone one with the change: servers have no zones with names until an operator loads them.
func zoneSQL(t *testing.T, id int, change adoptedtest.Change) []string {
	zone, err := time.LoadLocation(change.Zone)
	if err != nil {
		t.Fatal(err)
	}
	_, before := change.At.Add(-time.Second).In(zone).Zone()
	_, after := change.At.In(zone).Zone()
	name := fmt.Sprintf("Test/%d", id)
	return []string{
		fmt.Sprintf("INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (%d, 'N')", id),
		fmt.Sprintf("INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES ('%s', %d)", name, id),
		fmt.Sprintf("INSERT INTO mysql.time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation) VALUES (%d, 0, %d, 0, 'A'), (%[1]d, 1, %[3]d, 1, 'B')", id, before, after),
		fmt.Sprintf("INSERT INTO mysql.time_zone_transition (Time_zone_id, Transition_time, Transition_type_id) VALUES (%d, 0, 1), (%[1]d, %[2]d, 0), (%[1]d, %[3]d, 1)", id, change.At.Add(-180*24*time.Hour).Unix(), change.At.Unix()),
		"SET GLOBAL time_zone = '" + name + "'",
	}
}
