package journeys

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// requests has one request of each op that a rule can permit, on the queue mail-a.
var requests = map[string]string{
	"enqueue":  `{"op":"enqueue","queue":"mail-a","payload":"x"}`,
	"claim":    `{"op":"claim","queue":"mail-a","max":1}`,
	"ack":      `{"op":"ack","lease":"LEASE"}`,
	"nack":     `{"op":"nack","lease":"LEASE"}`,
	"extend":   `{"op":"extend","lease":"LEASE"}`,
	"stats":    `{"op":"stats","queue":"mail-a"}`,
	"peek":     `{"op":"peek","queue":"mail-a"}`,
	"retry":    `{"op":"retry","queue":"mail-a","ids":["1"]}`,
	"change":   `{"op":"change","queue":"mail-a","ids":["999999"],"priority":1}`,
	"delete":   `{"op":"delete","queue":"mail-a","ids":["999999"]}`,
	"reclaim":  `{"op":"reclaim","queue":"mail-a","ids":["999999"]}`,
	"purge":    `{"op":"purge","queue":"mail-a","state":"dead"}`,
	"pause":    `{"op":"pause","queue":"mail-a"}`,
	"resume":   `{"op":"resume","queue":"mail-a"}`,
	"watch":    `{"op":"watch","queue":"mail-a"}`,
	"progress": `{"op":"progress","lease":"LEASE","done":1}`,
	"wait":     `{"op":"wait","queue":"mail-a","ids":["999999"]}`,
	"batches":  `{"op":"batches","queue":"mail-a"}`,
	"ping":     `{"op":"ping"}`,
	"status":   `{"op":"status"}`,
	"reload":   `{"op":"reload"}`,
}

// TestPermissions checks that each op is forbidden for a user whom no rule permits it, and works
// for others. Rules apply to the user and groups that the kernel reports.
func TestPermissions(t *testing.T) {
	s := kit.NewSite(t)
	sc := s.Sidecar("a")
	text, err := os.ReadFile(sc.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	const user, group, extra = 4242, 4343, 4444
	start := func(allow string) {
		config := strings.Replace(string(text), "listen:\n  - socket: "+sc.Socket+"\n", "listen:\n  - socket: "+sc.Socket+"\n    mode: \"0666\"\n    allow:\n"+allow, 1)
		if err := os.WriteFile(sc.ConfigFile, []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	operator := fmt.Sprintf("      - {users: [%d]}\n      - {users: [%[1]d], ops: [reload]}\n", os.Getuid())
	start(operator)
	sc.Start()
	root := sc.Dial()
	for op, request := range requests {
		for _, by := range []string{
			fmt.Sprintf("users: [%d]", user), fmt.Sprintf("groups: [%d]", group), fmt.Sprintf("groups: [%d]", extra), `groups: [1], users: [1]`,
		} {
			queues := `, queues: ["mail-*"]`
			if op == "status" || op == "reload" { // a rule with queues permits neither
				queues = ""
			}
			start(operator + fmt.Sprintf("      - {%s, ops: [%s]%s}\n", by, op, queues))
			root.Must(kit.Msg{"op": "reload"})
			line := request
			if strings.Contains(line, "LEASE") {
				root.Must(kit.Msg{"op": "enqueue", "queue": "mail-a"})
				line = strings.Replace(line, "LEASE", root.ClaimOne("mail-a").Lease, 1)
			}
			who := kit.SystemUser{UID: user, GID: group, Groups: fmt.Sprint(extra)}
			allowed := !strings.Contains(by, "[1]")
			got := who.As(t, sc.Socket, `{"op":"hello"}`, line)
			if len(got) != 2 || got[0].Error != nil || (got[1].Error == nil) != allowed ||
				!allowed && (got[1].Error.Code != "forbidden" || !strings.Contains(got[1].Error.Message, fmt.Sprintf("user %d (groups %d,%d) has no right to the op %s", user, group, extra, op))) {
				t.Errorf("%s by a rule of %s: answered %s", op, by, asJSON(got))
			}
			for _, other := range []string{"ping", "peek"} {
				if r := who.As(t, sc.Socket, requests[other]); other != op && (r[0].Error == nil || r[0].Error.Code != "forbidden") {
					t.Errorf("%s by a rule for %s: answered %s", other, op, asJSON(r))
				}
			}
			if strings.Contains(line, "mail-a") {
				if r := who.As(t, sc.Socket, strings.ReplaceAll(line, "mail-a", "other")); r[0].Error == nil || r[0].Error.Code != "forbidden" {
					t.Errorf("%s on a queue that no rule names: answered %s", op, asJSON(r))
				}
			}
			if op == "pause" {
				root.Must(kit.Msg{"op": "resume", "queue": "mail-a"})
			}
		}
	}
	// More groups than fit the kernel's first answer. The last one counts too.
	var many []string
	for g := range 1000 {
		many = append(many, fmt.Sprint(5000+g))
	}
	start(operator + "      - {groups: [5999], ops: [ping]}\n")
	root.Must(kit.Msg{"op": "reload"})
	who := kit.SystemUser{UID: user, GID: group, Groups: strings.Join(many, ",")}
	if r := who.As(t, sc.Socket, requests["ping"], requests["peek"]); len(r) != 2 || r[0].Error != nil || r[1].Error == nil || len(r[1].Error.Message) > 500 {
		t.Errorf("a user of 1000 groups is answered %s", asJSON(r))
	}
	if t.Failed() {
		return
	}
	if err := local.RanAsRoot("permission table", fmt.Sprintf("%d ops, each refused and allowed by user, by group and by supplementary group", len(requests))); err != nil {
		t.Fatal(err)
	}
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
