package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestPeekShowsWhyAJobWaits: of jobs that a request names, peek shows what keeps each from workers.
func TestPeekShowsWhyAJobWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, options(memory.New())).dial(t)
		enqueue := func(fields string) string {
			t.Helper()
			return c.call(`{"op":"enqueue",%s}`, fields).Job.ID
		}
		want := func(request, want string) {
			t.Helper()
			synctest.Wait() // admissions run after the commits that cause them
			c.send(`{"op":"peek",%s}`, request)
			line, err := c.line()
			if err != nil {
				t.Fatal(err)
			}
			var r struct {
				Jobs []struct {
					WaitsFor string `json:"waits_for"`
					Behind   []struct{ ID, State string }
				}
			}
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, j := range r.Jobs {
				got = append(got, strings.TrimSpace(j.WaitsFor+" "+strings.Trim(fmt.Sprint(j.Behind), "[]")))
			}
			if text := strings.Join(got, "; "); text != want {
				t.Errorf("%s: %q, want %q", request, text, want)
			}
		}
		later, plain := enqueue(`"queue":"a","delay_ms":60000`), enqueue(`"queue":"a"`)
		want(`"ids":["`+later+`"]`, "time")
		want(`"queue":"a","ids":["`+plain+`"]`, "worker")
		other := enqueue(`"queue":"a"`)
		c.claim1("a")
		want(`"queue":"a","ids":["`+other+`"]`, "") // one has a job of the queue
		plain = other
		c.call(`{"op":"pause","queue":"a"}`)
		want(`"queue":"a","ids":["`+later+`","`+plain+`"]`, "time; pause")
		want(`"queue":"a","state":"ready"`, "") // a list isn't explained

		one, two := enqueue(`"queue":"g","group":"x"`), enqueue(`"queue":"g","group":"x","key":"k"`)
		want(`"ids":["`+two+`"]`, "group {"+one+" ready}")
		c.claim1("g")
		want(`"queue":"g","key":"k"`, "group {"+one+" claimed}")

		c.call(`{"op":"limit","queue":"m","max_claimed":1}`)
		enqueue(`"queue":"m"`)
		c.claim1("m")
		want(`"ids":["`+enqueue(`"queue":"m"`)+`"]`, "max_claimed")
		many := strings.Repeat(`"`+plain+`",`, 20)
		want(`"queue":"a","ids":[`+many+`"`+plain+`"]`, "") // too many
	})
}
