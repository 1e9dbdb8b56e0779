package adopted_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestScheduleOfAnAdoptedQueue: a sidecar with the table stores the jobs there, and one without it leaves the schedule alone. A schedule
// of a managed queue is any sidecar's.
func TestScheduleOfAnAdoptedQueue(t *testing.T) {
	t.Parallel()
	k := newKit(t, systemE, map[string]mapping.Table{"e": tableE()})
	for _, s := range []backends.Schedule{
		{Name: "adopted", Queue: "e", Every: time.Second, Payload: []byte(`{"n": 9}`), Missed: backends.MissedAll},
		{Name: "managed", Queue: "mail", Every: time.Second, Payload: []byte("m"), Missed: backends.MissedAll},
	} {
		if _, err := k.DeclareSchedule(t.Context(), s, false); err != nil {
			t.Fatal(err)
		}
	}
	var u *backends.UnsupportedError
	if _, err := k.DeclareSchedule(t.Context(), backends.Schedule{Name: "priority", Queue: "e", Every: time.Second, Payload: []byte("{}"), Priority: 1}, false); !errors.As(err, &u) || u.Role != "priority" {
		t.Errorf("a schedule that the table can't store: %v", err)
	}
	due := func(maintain func(backends.Maintenance) (backends.MaintenanceResult, error)) {
		t.Helper()
		testwait.Until(t, "a schedule is due", func() bool {
			r, err := maintain(backends.Maintenance{Limit: 10, Watched: true})
			if err != nil {
				t.Fatal(err)
			}
			return r.ScheduleDue
		})
	}
	due(func(m backends.Maintenance) (backends.MaintenanceResult, error) { return k.Maintain(t.Context(), m) })
	engine := k.Store.Engine // as a sidecar that doesn't have the table
	r, err := engine.FireSchedules(t.Context(), nil)
	if err != nil || len(r.Fired) != 1 || r.Fired[0].Name != "managed" {
		t.Fatalf("without the table: %+v, %v", r, err)
	}
	r, err = k.FireSchedules(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	jobs := 0
	for _, f := range r.Fired {
		if f.Name == "adopted" {
			jobs += len(f.Jobs)
		}
	}
	if jobs == 0 {
		t.Fatalf("with the table: %+v", r)
	}
	all, err := k.Schedules(t.Context(), backends.ScheduleList{Queue: "e", Max: 10})
	if err != nil || len(all) != 1 || all[0].LastJob == "" {
		t.Fatalf("the schedule is %+v, %v", all, err)
	}
	views, err := k.Peek(t.Context(), backends.Peek{Queue: "e", IDs: []string{all[0].LastJob}, Max: 1})
	if err != nil || len(views) != 1 || string(views[0].Payload) != `{"n": 9}` {
		t.Errorf("the job is %+v, %v", views, err)
	}
}

// TestOneTableStopsNoOtherSchedule: schedules of a table that is out of order stop none of another table.
func TestOneTableStopsNoOtherSchedule(t *testing.T) {
	t.Parallel()
	other := tableE()
	other.Name = "other_queue"
	k := newKit(t, systemE+`; CREATE TABLE other_queue (LIKE my_queue INCLUDING ALL)`, map[string]mapping.Table{"e": tableE(), "f": other})
	for i, queue := range []string{"e", "e", "f"} {
		if _, err := k.DeclareSchedule(t.Context(), backends.Schedule{Name: fmt.Sprint(i), Queue: queue, Every: time.Second, Payload: []byte("{}")}, false); err != nil {
			t.Fatal(err)
		}
	}
	k.sql("UPDATE qsidecar.qsidecar_schedules SET next_at = 1; DROP TABLE my_queue")
	r, err := k.FireSchedules(t.Context(), nil)
	if err == nil || len(r.Fired) != 1 || r.Fired[0].Name != "2" {
		t.Errorf("fired %+v, %v", r, err)
	}
}

// TestScheduleOfAQueueThatIsManagedNow: a declaration through a sidecar without the table makes the schedule one of a managed queue, and
// one through a sidecar with it makes it one of the table again. An older version decides nothing.
func TestScheduleOfAQueueThatIsManagedNow(t *testing.T) {
	t.Parallel()
	k := newKit(t, systemE, map[string]mapping.Table{"e": tableE()})
	s := backends.Schedule{Name: "s", Queue: "e", Every: time.Second, Payload: []byte("{}"), Source: "app", Version: 2}
	older := s
	older.Version = 1
	engine := k.Store.Engine // as a sidecar that doesn't have the table
	for i, step := range []struct {
		by      backends.Scheduler
		s       backends.Schedule
		want    backends.DeclareOutcome
		managed bool
	}{
		{k.Store, s, backends.DeclareCreated, false},
		{engine, older, backends.DeclareIgnored, false},
		{engine, s, backends.DeclareUpdated, true},
		{engine, s, backends.DeclareUnchanged, true},
		{k.Store, older, backends.DeclareIgnored, true},
		{k.Store, s, backends.DeclareUpdated, false},
	} {
		d, err := step.by.DeclareSchedule(t.Context(), step.s, true)
		if err != nil || d.Outcome != step.want || step.want == backends.DeclareUpdated && len(d.Changes) != 1 {
			t.Errorf("step %d, dry run: %+v, %v", i, d, err)
		}
		if d, err = step.by.DeclareSchedule(t.Context(), step.s, false); err != nil || d.Outcome != step.want {
			t.Errorf("step %d: %+v, %v", i, d, err)
		}
		k.sql("UPDATE qsidecar.qsidecar_schedules SET next_at = 1")
		r, err := engine.FireSchedules(t.Context(), nil)
		if err != nil || (len(r.Fired) == 1) != step.managed {
			t.Errorf("step %d: a sidecar without the table fired %+v, %v", i, r, err)
		}
	}
}
