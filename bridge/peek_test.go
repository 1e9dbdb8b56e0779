package bridge

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestPeekInEveryQueue shows that peek without a queue returns jobs of every queue that the session is allowed to
// peek, and of no other.
func TestPeekInEveryQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Sockets[0].Allow = []Rule{
			me([]protocol.Op{protocol.OpEnqueue}),
			me([]protocol.Op{protocol.OpPeek, protocol.OpClaim, protocol.OpNack}, "mail*", "sms"),
		}
		s := start(t, o)
		c := s.dial(t)
		var ids []string
		for range 20 {
			ids = append(ids, c.call(`{"op":"enqueue","queue":"secret","payload":"s"}`).Job.ID)
		}
		for _, q := range []string{"sms", "mail", "mail", "mail", "mail-eu"} {
			ids = append(ids, c.call(`{"op":"enqueue","queue":%q,"payload":"p"}`, q).Job.ID)
		}
		shows := func(want []string, request string) {
			t.Helper()
			got := []string{}
			for _, v := range c.call("%s", request).Jobs {
				got = append(got, v.Queue+" "+v.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s shows %q, want %q", request, got, want)
			}
		}
		sms, mail, eu := "sms "+ids[20], []string{"mail " + ids[21], "mail " + ids[22], "mail " + ids[23]}, "mail-eu "+ids[24]
		shows([]string{mail[0], mail[1], mail[2], eu, sms}, `{"op":"peek"}`)
		shows([]string{mail[0], mail[1], eu, sms}, `{"op":"peek","max":4}`)
		shows([]string{eu, sms}, `{"op":"peek","max":2}`)
		shows([]string{}, `{"op":"peek","state":"dead"}`)
		list := ""
		for _, id := range ids {
			list += fmt.Sprintf(",%q", id)
		}
		shows([]string{mail[0], mail[1], mail[2], eu, sms}, `{"op":"peek","ids":["none"`+list+`]}`)
		shows([]string{}, fmt.Sprintf(`{"op":"peek","ids":[%q]}`, ids[0]))
		c.call(`{"op":"nack","lease":%q,"dead":true,"error":"no route"}`, c.claim1("sms").Lease)
		shows([]string{sms}, `{"op":"peek","state":"dead"}`)
		c.refused("forbidden", `{"op":"peek","queue":"secret"}`)
	})
}

// TestPeekShowsAllIDs shows that the default of max applies to lists, and not to jobs that are named.
func TestPeekShowsAllIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, options(memory.New())).dial(t)
		list := `"none"`
		for range 20 {
			list += fmt.Sprintf(",%q", c.call(`{"op":"enqueue","queue":"q"}`).Job.ID)
		}
		if n := len(c.call(`{"op":"peek","queue":"q","ids":[%s]}`, list).Jobs); n != 20 {
			t.Errorf("peek with 20 ids shows %d jobs", n)
		}
	})
}
