package clients

import (
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestGoSchedule checks declarations of schedules by the Go client.
func TestGoSchedule(t *testing.T) {
	t.Parallel()
	c, err := qsidecar.Dial(t.Context(), qsidecar.Options{Socket: kit.NewSite(t).Start("a").Socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	daily := protocol.Schedule{
		Name: "daily", Queue: "reports", Cron: "0 6 * * *", Zone: "Europe/Berlin", Payload: []byte(`{"kind":"daily"}`), Source: "app", Version: 1,
	}
	later, older := daily, daily
	later.Cron, later.Version = "0 7 * * *", 2
	older.Cron = "0 8 * * *"
	for _, step := range []struct {
		declare protocol.Schedule
		want    string
	}{{daily, "created"}, {daily, "unchanged"}, {later, "updated"}, {older, "ignored"}} {
		if got, err := c.Schedule(t.Context(), step.declare); err != nil || got != step.want {
			t.Errorf("declaring %+v: %q (%v), want %q", step.declare, got, err, step.want)
		}
	}
	run := &protocol.Request{Op: protocol.OpChangeSchedule, Queue: "reports", Schedule: &protocol.Schedule{Name: "daily"}, Do: protocol.DoRun}
	if _, err := c.Call(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	jobs, err := c.Claim(t.Context(), qsidecar.Claim{Queues: []string{"reports"}})
	if err != nil || len(jobs) != 1 || string(jobs[0].Payload) != `{"kind":"daily"}` || jobs[0].Headers["qsidecar-schedule"] != "daily" {
		t.Errorf("the job of the schedule: %+v (%v)", jobs, err)
	}
	for _, wrong := range []protocol.Schedule{
		{Name: "s", Queue: "q"}, {Name: "s", Queue: "q", Cron: "@daily", EveryMS: 60_000}, {Name: "s", Queue: "q", Cron: "61 * * * *"},
	} {
		if got, err := c.Schedule(t.Context(), wrong); !qsidecar.IsCode(err, protocol.CodeBadRequest) {
			t.Errorf("declaring %+v: %q (%v), want bad_request", wrong, got, err)
		}
	}
}
