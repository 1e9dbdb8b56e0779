package bridge

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestExpiredJobsNeverStart: a waiting claim gets no job whose time is over, and a backlog of such jobs keeps no other job from a claim that
// doesn't wait.
func TestExpiredJobsNeverStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		q := o.Queues["*"]
		q.StartWithin, q.RemoveExpired = time.Minute, true
		o.Queues["soon"] = q
		c := start(t, o).dial(t)
		late := make([]string, 500)
		for i := range late {
			late[i] = `{"queue":"q","start_before":1000}`
		}
		c.call(`{"op":"enqueue","jobs":[%s,{"queue":"q","payload":"last"}]}`, strings.Join(late, ","))
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 1 || r.Jobs[0].Payload != "last" {
			t.Errorf("a claim behind expired jobs gets %v", r.Jobs)
		}
		if r := c.call(`{"op":"stats","queue":"q"}`); fmt.Sprint(r.Queues[0]["dead"]) != "500" {
			t.Errorf("%+v, want 500 dead jobs", r.Queues[0])
		}

		c.call(`{"op":"pause","queue":"soon"}`)
		ids := make([]string, 2)
		for i, fields := range []string{"", `,"on_expiry":"dead"`} {
			ids[i] = `"` + c.call(`{"op":"enqueue","queue":"soon"%s}`, fields).Job.ID + `"`
		}
		c.call(`{"op":"enqueue","queue":"soon","start_within_ms":3600000,"payload":"in time"}`)
		peek := fmt.Sprintf(`{"op":"peek","queue":"soon","ids":[%s]}`, strings.Join(ids, ","))
		time.Sleep(59 * time.Second)
		if r := c.call("%s", peek); len(r.Jobs) != 2 {
			t.Errorf("%d jobs are left a second before their time, want both", len(r.Jobs))
		}
		time.Sleep(2 * time.Second)
		if r := c.call("%s", peek); len(r.Jobs) != 1 {
			t.Errorf("%d jobs are left after their time, want the one that is not deleted", len(r.Jobs))
		}
		c.call(`{"op":"resume","queue":"soon"}`)
		if r := c.call(`{"op":"claim","queue":"soon","max":3,"wait_ms":60000}`); len(r.Jobs) != 1 || r.Jobs[0].Payload != "in time" {
			t.Errorf("a claim gets %v", r.Jobs)
		}
	})
}

// TestJobsOfSchedulesExpire shows that the limit of a queue is also one for the jobs of its schedules.
func TestJobsOfSchedulesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		q := o.Queues["*"]
		q.StartWithin = time.Minute
		o.Queues["soon"] = q
		c := start(t, o).dial(t)
		c.call(`{"op":"pause","queue":"soon"}`)
		c.call(`{"op":"schedule","queue":"soon","schedule":{"name":"s","every_ms":120000}}`)
		c.call(`{"op":"change_schedule","queue":"soon","schedule":{"name":"s"},"do":"run"}`)
		time.Sleep(5 * time.Minute) // of the virtual clock: two occurrences at least
		c.call(`{"op":"change_schedule","queue":"soon","schedule":{"name":"s"},"do":"delete"}`)
		time.Sleep(2 * time.Minute)
		if r := c.call(`{"op":"stats","queue":"soon"}`).Queues[0]; r["ready"] != 0.0 || r["dead"].(float64) < 3 {
			t.Errorf("%+v, want the three jobs of the schedule dead", r)
		}
	})
}
