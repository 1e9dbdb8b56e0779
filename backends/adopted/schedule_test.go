package adopted_test

import (
	"errors"
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
	r, err := engine.FireSchedules(t.Context())
	if err != nil || len(r.Fired) != 1 || r.Fired[0].Name != "managed" {
		t.Fatalf("without the table: %+v, %v", r, err)
	}
	r, err = k.FireSchedules(t.Context())
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
	all, err := k.Schedules(t.Context(), "e")
	if err != nil || len(all) != 1 || all[0].LastJob == "" {
		t.Fatalf("the schedule is %+v, %v", all, err)
	}
	views, err := k.Peek(t.Context(), backends.Peek{Queue: "e", IDs: []string{all[0].LastJob}, Max: 1})
	if err != nil || len(views) != 1 || string(views[0].Payload) != `{"n": 9}` {
		t.Errorf("the job is %+v, %v", views, err)
	}
}
