package bridge

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/internal/unixsocket"
	"github.com/qsidecar/qsidecar/protocol"
)

// me returns a rule for this process, by its user's number.
func me(ops []protocol.Op, queues ...string) Rule {
	return Rule{Users: []uint32{uint32(os.Getuid())}, Ops: ops, Queues: queues}
}

func TestRulesOfASocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Sockets[0].Allow = []Rule{
			me([]protocol.Op{protocol.OpEnqueue, protocol.OpStats, protocol.OpPeek}),
			me([]protocol.Op{protocol.OpClaim, protocol.OpAck}, "mail-*"),
			{Users: []uint32{4_000_000_000}},
		}
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"hello","worker":"w"}`)
		c.call(`{"op":"enqueue","jobs":[{"queue":"mail-a"},{"queue":"other"}]}`)
		if r := c.refused("forbidden", `{"op":"claim","queue":"other","id":1}`); r.Error.Field != "queue" {
			t.Errorf("the field of %+v is not named", r.Error)
		}
		if r := c.refused("forbidden", `{"op":"claim","queues":["mail-a","other"]}`); r.Error.Field != "queues" || *r.Error.Index != 1 {
			t.Errorf("the queue at fault of %+v is not named", r.Error)
		}
		got := c.claim1("mail-a")
		c.refused("forbidden", `{"op":"nack","lease":%q}`, got.Lease)
		c.call(`{"op":"ack","lease":%q,"enqueue":[{"queue":"other"}]}`, got.Lease)
		c.refused("forbidden", `{"op":"ping"}`)
		c.refused("forbidden", `{"op":"pause","queue":"mail-a"}`)
		c.call(`{"op":"peek","queue":"other"}`)
		c.call(`{"op":"bye"}`)
	})
}

// TestSideEffectsNeedRights shows that the side effects of a request also need a right, for each queue.
func TestSideEffectsNeedRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Sockets[0].Allow = []Rule{
			me([]protocol.Op{protocol.OpEnqueue}, "mail"),
			me([]protocol.Op{protocol.OpClaim, protocol.OpAck, protocol.OpExtend}),
		}
		s := start(t, o)
		c := s.dial(t)
		c.call(`{"op":"enqueue","queue":"mail"}`)
		got := c.claim1("mail")
		r := c.refused("forbidden", `{"op":"ack","lease":%q,"enqueue":[{"queue":"mail"},{"queue":"other"}]}`, got.Lease)
		if r.Error.Field != "enqueue" || *r.Error.Index != 1 || !strings.Contains(r.Error.Message, "no right to the op enqueue on the queue other on this socket") {
			t.Errorf("an ack that enqueues elsewhere is answered %+v", r.Error)
		}
		c.refused("forbidden", `{"op":"enqueue","jobs":[{"queue":"mail"},{"queue":"other"}]}`)
		c.call(`{"op":"extend","lease":%q,"bind":true}`, got.Lease)
		c.call(`{"op":"ack","lease":%q,"enqueue":[{"queue":"mail"}]}`, got.Lease)
		if jobs := c.call(`{"op":"claim","queue":"other"}`).Jobs; len(jobs) > 0 {
			t.Errorf("what was forbidden was stored: %+v", jobs)
		}
	})
}

// TestSidecarOpsMustBeNamed shows that only a rule that names status, reload, fleet, check or config grants it, because they concern the
// sidecar and not a queue. Without rules every op is granted.
func TestSidecarOpsMustBeNamed(t *testing.T) {
	const status, reload = protocol.OpStatus, protocol.OpReload
	all := []protocol.Op{status, reload, protocol.OpFleet, protocol.OpCheck, protocol.OpConfig}
	for name, x := range map[string]struct {
		allow  []Rule
		grants []protocol.Op
	}{
		"no rules":                       {nil, all},
		"a rule without keys":            {[]Rule{{}}, nil},
		"a rule without ops":             {[]Rule{me(nil)}, nil},
		"a rule with queues":             {[]Rule{me(nil, "mail-*")}, nil},
		"a rule with every queue":        {[]Rule{me(nil, "*")}, nil},
		"a rule with other ops":          {[]Rule{me([]protocol.Op{protocol.OpPing})}, nil},
		"a rule that names one":          {[]Rule{me(nil), me([]protocol.Op{status})}, []protocol.Op{status}},
		"a rule that names both":         {[]Rule{me(nil, "mail-*"), me([]protocol.Op{status, reload})}, []protocol.Op{status, reload}},
		"a rule that names it to others": {[]Rule{me(nil), {Users: []uint32{4_000_000_000}, Ops: []protocol.Op{status}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := options(memory.New())
				o.Sockets[0].Allow = x.allow
				c := start(t, o).dial(t)
				c.call(`{"op":"ping"}`)
				for _, op := range all {
					if slices.Contains(x.grants, op) {
						c.send(`{"op":%q}`, op)
						if r := c.receive(); !r.OK && r.Error.Code != "unsupported" { // this sidecar has no config to reload
							t.Errorf("%s is answered %+v", op, r.Error)
						}
						continue
					}
					want := "no right to the op " + string(op) + " on this socket: it needs a rule that names it in `ops` under `allow`"
					if r := c.refused("forbidden", `{"op":%q}`, op); !strings.Contains(r.Error.Message, want) {
						t.Errorf("%s is refused with %q", op, r.Error.Message)
					}
				}
			})
		})
	}
}

func TestNoRuleIsNoRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		o.Sockets[0].Allow = []Rule{{Users: []uint32{4_000_000_000}}}
		c := start(t, o).dial(t)
		c.call(`{"op":"hello"}`)
		c.refused("forbidden", `{"op":"enqueue","queue":"a"}`)
		c.refused("forbidden", `{"op":"stats"}`)
	})
}

func TestDenialNamesTheClient(t *testing.T) {
	many := make([]uint32, 65_537)
	for i := range many {
		many[i] = uint32(i)
	}
	for want, p := range map[string]*unixsocket.Peer{
		"user 7 (groups 7)":     {UID: 7, Groups: []uint32{7}},
		"user 7 (groups 7,8,9)": {UID: 7, Groups: []uint32{7, 8, 9}},
		"user 7 (groups 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 and 65521 more)": {UID: 7, Groups: many},
		"a user whom this system does not name":                                nil,
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestStatsShowWhatOneMaySee shows that stats without a queue leave out the queues that are not allowed.
func TestStatsShowWhatOneMaySee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		o := options(db)
		s := start(t, o)
		s.dial(t).call(`{"op":"enqueue","jobs":[{"queue":"a"},{"queue":"b"}]}`)
		s.reloads(t, with(o, func(o *Options) { o.Sockets[0].Allow = []Rule{me(nil, "a")} }))
		c := s.dial(t)
		if r := c.call(`{"op":"stats"}`); len(r.Queues) != 1 || r.Queues[0]["queue"] != "a" {
			t.Errorf("stats show %v", r.Queues)
		}
		c.refused("forbidden", `{"op":"stats","queue":"b"}`)
	})
}

// TestLeaseOfAnotherSidecar shows that the queue of a lease is that of its row, even if this sidecar never handed the
// job out.
func TestLeaseOfAnotherSidecar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.New()
		first := start(t, options(db))
		holder := first.dial(t)
		holder.call(`{"op":"enqueue","jobs":[{"queue":"a"},{"queue":"b"}]}`)
		a, b := holder.claim1("a"), holder.claim1("b")
		o := options(db)
		o.Sockets[0].Allow = []Rule{me(nil, "a")}
		c := start(t, o).dial(t)
		c.refused("forbidden", `{"op":"ack","lease":%q}`, b.Lease)
		c.refused("forbidden", `{"op":"ack","leases":[%q,%q]}`, a.Lease, b.Lease)
		c.call(`{"op":"ack","lease":%q}`, a.Lease)
		c.refused("lease_lost", `{"op":"ack","lease":%q}`, a.Lease)
		holder.call(`{"op":"ack","lease":%q}`, b.Lease)
	})
}

// TestRightsChangeUnderAConnection shows that a reload grants and revokes rights. A waiting claim that lost its right
// gets an error.
func TestRightsChangeUnderAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		s := start(t, o)
		c, waits := s.dial(t), s.dial(t)
		waits.send(`{"op":"claim","queue":"a","wait_ms":60000}`)
		eventually(t, func() bool { return s.pipeline().Snapshot().Claims == 1 })
		s.reloads(t, with(o, func(o *Options) { o.Sockets[0].Allow = []Rule{me([]protocol.Op{protocol.OpEnqueue})} }))
		if r := waits.receive(); r.Error.Code != "forbidden" {
			t.Errorf("the claim that waited was answered %+v", r)
		}
		c.call(`{"op":"enqueue","queue":"a"}`)
		c.refused("forbidden", `{"op":"claim","queue":"a"}`)
		s.reloads(t, o)
		c.claim1("a")
	})
}

func TestInvalidRulesAreRejected(t *testing.T) {
	o := options(memory.New())
	o.Sockets[0].Allow = []Rule{{Ops: []protocol.Op{"shout", protocol.OpStatus}, Queues: []string{"a b"}}}
	_, err := New(o, testLog(t))
	for _, want := range []string{`there is no op "shout"`, `"a b" isn't a queue name`, "status concerns the sidecar, not a queue"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the rules are reported as %v, want %s", err, want)
		}
	}
}

var _ backends.Locator = (*memory.Backend)(nil)
