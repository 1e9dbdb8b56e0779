package adminapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/qsidecar/qsidecar/protocol"
)

// openAPI is the part of the document that the tests read.
type openAPI struct {
	Paths map[string]map[string]struct {
		Responses map[string]any
	}
	Components struct {
		Responses map[string]struct{ Description string }
		Schemas   map[string]struct {
			Properties map[string]struct{ Enum []protocol.Code }
		}
	}
}

func readDocument(t *testing.T) (doc openAPI) {
	t.Helper()
	if err := json.Unmarshal(document, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestDocumentHasTheOperations compares the document with the table of operations, and with the statuses of errors.
func TestDocumentHasTheOperations(t *testing.T) {
	doc := readDocument(t)
	for op, changes := range ops {
		methods := slices.Sorted(maps.Keys(doc.Paths["/api/v1/"+string(op)]))
		want := []string{"post"}
		if !changes {
			want = []string{"get", "post"}
		}
		if !slices.Equal(methods, want) {
			t.Errorf("%s has the methods %q, want %q", op, methods, want)
		}
		for method, o := range doc.Paths["/api/v1/"+string(op)] {
			for code, status := range statuses {
				if o.Responses[strconv.Itoa(status)] == nil {
					t.Errorf("%s %s has no response %d for %s", method, op, status, code)
				}
			}
		}
	}
	if len(doc.Paths) != len(ops) {
		t.Errorf("the document has %d paths, and there are %d operations", len(doc.Paths), len(ops))
	}
	codes := doc.Components.Schemas["Error"].Properties["code"].Enum
	if want := slices.Sorted(maps.Keys(statuses)); !slices.Equal(slices.Sorted(slices.Values(codes)), want) {
		t.Errorf("the document has the codes %q, want %q", codes, want)
	}
	for code, status := range statuses {
		if d := doc.Components.Responses["E"+strconv.Itoa(status)].Description; !strings.Contains(d, string(code)) {
			t.Errorf("the response %d is for %q, without %s", status, d, code)
		}
	}
}

// compiled returns the schema of a part of the document. The replies of a sidecar of the same version have no other
// fields than the document's.
func compiled(t *testing.T, pointer string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		t.Fatal(err)
	}
	walk(doc, func(object map[string]any) {
		if object["type"] == "object" && object["additionalProperties"] == nil {
			object["additionalProperties"] = false
		}
	})
	c := jsonschema.NewCompiler()
	if err := c.AddResource("https://qsidecar.example/openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("https://qsidecar.example/openapi.json#" + pointer)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func walk(v any, visit func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		visit(v)
		for _, x := range v {
			walk(x, visit)
		}
	case []any:
		for _, x := range v {
			walk(x, visit)
		}
	}
}

const (
	requestSchema = "/requestBody/content/application~1json/schema"
	replySchema   = "/responses/200/content/application~1json/schema"
)

// check validates a JSON text by a schema of the document.
func check(t *testing.T, what, pointer, text string, valid bool) {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err == nil {
		err = compiled(t, pointer).Validate(v)
	}
	if (err == nil) != valid {
		t.Errorf("%s: %s: %v", what, text, err)
	}
}

// TestDocumentHasTheFields sends requests with all fields, and compares them and the replies with the document.
func TestDocumentHasTheFields(t *testing.T) {
	x := start(t, writable, nil)
	const job = `"queue":"q","payload":"p","priority":1,"delay_ms":1,"key":"k","headers":{"h":"v"},"max_attempts":1,"timeout_ms":1000,"start_within_ms":1000,"on_expiry":"dead","retain_ms":1000,"key_until":"start","on_conflict":"debounce","debounce_max_ms":1`
	for _, c := range []struct{ op, body string }{
		{"enqueue", `{"id":"text",` + job + `}`},
		{"enqueue", `{` + job + `}`},
		{"enqueue", `{"queue":"q","payload_b64":"AA==","run_at":1,"start_before":1}`},
		{"enqueue", `{"id":1,"jobs":[{` + job + `},{"queue":"q","payload_b64":"/w==","run_at":1}]}`},
		{"stats", `{"id":1}`}, {"stats", `{"id":1,"queue":"q"}`},
		{"status", `{"id":1}`}, {"fleet", `{"id":1}`}, {"history", `{"id":1}`}, {"history", `{"queue":"q"}`},
		{"peek", `{"id":1,"queue":"q","state":"ready","max":10}`}, {"peek", `{"ids":["1"]}`},
		{"peek", `{"queue":"q","key":"k"}`}, {"peek", `{"queue":"q","state":"ready","key":"k","text":"p","headers":{"h":"v"},"max":1}`}, {"peek", `{"queue":"q","state":"dead","newest":true}`},
		{"pause", `{"id":1,"queue":"q"}`}, {"resume", `{"id":1,"queue":"q"}`},
		{"retry", `{"id":1,"queue":"q","all":true}`}, {"retry", `{"queue":"q","ids":["1"]}`},
		{"change", `{"id":1,"queue":"q","ids":["1"],"priority":0,"delay_ms":1}`}, {"change", `{"queue":"q","ids":["1"],"run_at":1}`},
		{"delete", `{"id":1,"queue":"q","ids":["1"]}`},
		{"schedule", `{"id":1,"queue":"q","schedule":{"name":"s","cron":"0 2 * * *","tz":"Europe/Berlin","splay_ms":1000,"payload":"p","headers":{"h":"v"},"priority":1,"missed":"all","overlap":"skip","source":"app","version":1}}`},
		{"schedule", `{"queue":"q","dry_run":true,"schedule":{"name":"s","every_ms":1000,"payload_b64":"AA==","source":"app","version":2}}`},
		{"schedules", `{"id":1,"queue":"q"}`}, {"schedules", `{"after":"a","max":1}`}, {"schedules", `{"schedule":{"name":"s"}}`},
		{"change_schedule", `{"id":1,"queue":"q","schedule":{"name":"s"},"do":"run"}`}, {"schedules", `{}`},
		{"change_schedule", `{"queue":"q","schedule":{"name":"s","source":"app","version":1},"do":"delete"}`},
		{"reclaim", `{"id":1,"queue":"q","ids":["1"]}`},
		{"cancel", `{"id":1,"queue":"q","ids":["1"]}`}, {"cancel", `{"queue":"q","key":"k","delete":true}`},
		{"purge", `{"id":1,"queue":"q","state":"ready"}`}, {"open_batch", `{"queue":"q","on":"finish","payload":"p","key":"k"}`}, {"batches", `{"queue":"q","all":true}`},
	} {
		path := "/paths/~1api~1v1~1" + c.op + "/post"
		check(t, "a request of "+c.op, path+requestSchema, c.body, true)
		a := x.op(c.op, c.body)
		a.want(t, c.op+" "+c.body, 200, "")
		check(t, "a reply to "+c.op, path+replySchema, a.body, true)
	}
	for _, c := range []struct {
		op, body string
		code     int
	}{
		{"pause", `{}`, 400}, {"pause", `{"queue":"-"}`, 400}, {"pause", `{"queue":"q","max":1}`, 400},
		{"purge", `{"queue":"q","state":"claimed"}`, 400}, {"delete", `{"queue":"q"}`, 400}, {"reload", ``, 422}, {"config", ``, 422}, {"check", ``, 422}, {"claim", `{}`, 404},
	} {
		a := x.op(c.op, c.body)
		a.want(t, c.op+" "+c.body, c.code, "")
		check(t, "an error of "+c.op, "/components/schemas/ErrorReply", a.body, true)
	}
}

// TestDocumentHasNoOtherFields compares the fields of the requests in the document with those that an operation takes.
func TestDocumentHasNoOtherFields(t *testing.T) {
	values := map[string]string{
		"queue": `"q"`, "queues": `["q"]`, "payload": `"p"`, "payload_b64": `"AA=="`, "priority": "1", "delay_ms": "1", "run_at": "1", "key": `"k"`, "headers": `{"a":"b"}`,
		"max_attempts": "1", "timeout_ms": "1", "jobs": `[{"queue":"q"}]`, "max": "1", "wait_ms": "1", "lease_ms": "1000", "lease": `"1.a"`, "leases": `["1.a"]`,
		"result": `"r"`, "enqueue": `[{"queue":"q"}]`, "claim": `{"queue":"q"}`, "error": `"e"`, "dead": "true", "snooze": "true", "bind": "true", "request": "1",
		"ids": `["1"]`, "state": `"ready"`, "after": `"1"`, "after_queue": `"q"`, "text": `"t"`, "newest": "true", "all": "true", "group": `"g"`, "start_before": "1", "start_within_ms": "1", "on_expiry": `"dead"`, "retain_ms": "1", "key_until": `"start"`, "on_conflict": `"keep"`, "debounce_max_ms": "1", "group_limit": "1", "group_ready": "1", "group_on_failure": `"skip"`, "max_claimed": "1", "rate": `"1/s"`, "burst": "1", "none": "true", "delete": "true", "schedule": `{"name":"s"}`, "dry_run": "true", "batch": `"1"`, "on": `"finish"`, "do": `"run"`, "version": "1", "worker": `"w"`, "events": `["lost"]`, "id": "1",
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		t.Fatal(err)
	}
	at := func(v any, keys ...string) any {
		for _, key := range keys {
			v = v.(map[string]any)[key]
		}
		return v
	}
	for op := range ops {
		documented := at(doc, "paths", "/api/v1/"+string(op), "post", "requestBody", "content", "application/json", "schema", "properties").(map[string]any)
		for field, value := range values {
			var req protocol.Request
			e := decode(op, []byte(`{"`+field+`":`+value+`}`), protocol.DefaultMaxFrame, &req)
			takes := e == nil || !strings.Contains(e.Message, "takes no field")
			if _, ok := documented[field]; ok != takes {
				t.Errorf("%s takes the field %q: %v, and the document has it: %v", op, field, takes, ok)
			}
		}
		for field := range documented {
			if _, ok := values[field]; !ok {
				t.Errorf("%s has the field %q, which isn't one of the wire's", op, field)
			}
		}
	}
}
