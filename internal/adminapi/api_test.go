package adminapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestOperations carries out each operation.
func TestOperations(t *testing.T) {
	x := start(t, writable, nil)
	x.op("enqueue", `{"id":7,"queue":"mail","payload":"hi","key":"k","headers":{"a":"b"}}`).want(t, "enqueue", 200, `{"id":7,"ok":true,"job":{"id":"`)
	x.op("enqueue", `{"queue":"mail","payload":"hi","key":"k"}`).want(t, "a duplicate", 200, `"duplicate":true,"state":"ready"`)
	x.op("enqueue", `{"jobs":[{"queue":"mail","payload_b64":"AP8="},{"queue":"other"}]}`).want(t, "enqueue a list", 200, `"jobs":[{"id":`)
	get := func(path string) answer {
		return x.send(http.MethodGet, "/api/v1/"+path, "", "Authorization", "Bearer "+token)
	}
	get("stats").want(t, "stats", 200, `{"ok":true,"queues":[{"queue":"mail","ready":2,`)
	get("stats?queue=other").want(t, "stats of a queue", 200, `"queue":"other","ready":1`)
	get("status").want(t, "status", 200, `"worker":"admin"`)
	peeked := get("peek?queue=mail&state=ready&max=1")
	peeked.want(t, "peek", 200, `"payload":"hi"`)
	var reply struct{ Jobs []struct{ ID string } }
	if err := json.Unmarshal([]byte(peeked.body), &reply); err != nil || len(reply.Jobs) != 1 {
		t.Fatalf("peek has %s, %v", peeked.body, err)
	}
	id := reply.Jobs[0].ID
	get("peek?queue=mail&after="+id).want(t, "the next page", 200, `"payload_b64":"AP8="`)
	get("peek?ids="+id+"&ids=x").want(t, "peek ids", 200, `"payload":"hi"`)
	x.op("peek", `{"ids":["`+id+`"]}`).want(t, "peek by POST", 200, `"payload":"hi"`)
	x.op("pause", `{"queue":"mail"}`).want(t, "pause", 200, `{"ok":true}`)
	x.op("resume", ` { "queue" : "mail" } `).want(t, "resume", 200, `{"ok":true}`)
	x.op("retry", `{"queue":"mail","all":true}`).want(t, "retry", 200, `"count":0`)
	x.op("reclaim", `{"queue":"mail","ids":["`+id+`"]}`).want(t, "reclaim", 200, `"count":0`)
	x.op("cancel", `{"queue":"mail","ids":["`+id+`","99"]}`).want(t, "cancel", 200, `"count":1,"unchanged":[{"id":"99","state":"deleted"}]`)
	x.op("delete", `{"queue":"mail","ids":["`+id+`"]}`).want(t, "delete", 200, `"count":1`)
	x.op("purge", `{"queue":"mail","state":"ready"}`).want(t, "purge", 200, `"count":1`)
	x.op("reload", "").want(t, "reload without a config", 422, `"unsupported"`)
}

// TestBadRequests shows the errors of requests that are wrong.
func TestBadRequests(t *testing.T) {
	x := start(t, writable, nil)
	for _, c := range []struct {
		op, body string
		code     int
		text     string
	}{
		{"pause", "", 400, `"field":"queue"`},
		{"pause", "[]", 400, "JSON object"},
		{"pause", `{"queue":"q"`, 400, "JSON object"},
		{"pause", `{"queue":"q"}{}`, 400, "JSON object"},
		{"pause", `{"queue":"q","op":"purge"}`, 400, "op"},
		{"pause", `{"id":3,"queue":"q","state":"dead"}`, 400, `{"id":3,"ok":false,"error":{"code":"bad_request"`},
		{"purge", `{"queue":"q","state":"claimed"}`, 400, "bad_request"},
		{"enqueue", `{"queue":"q","payload":"` + strings.Repeat("x", protocol.DefaultMaxFrame-100) + `"}`, 413, "too_large"},
		{"enqueue", `{"queue":"q","payload":"` + strings.Repeat("x", protocol.DefaultMaxFrame) + `"}`, 413, "max_frame"},
	} {
		x.op(c.op, c.body).want(t, c.op+" "+c.body[:min(len(c.body), 60)], c.code, c.text)
	}
	for path, text := range map[string]string{
		"peek?state=foo": "state", "peek?max=0": "max", "peek?max=x": "max", "peek?max=1&max=2": "twice", "peek?after=1": "queue",
		"stats?state=dead": "takes no field", "status?queue=q": "takes no field", "peek?all=true": "takes no field",
	} {
		x.send(http.MethodGet, "/api/v1/"+path, "", "Authorization", "Bearer "+token).want(t, path, 400, text)
	}
	for op, text := range map[string]string{
		"stat":  `there is no op \"stat\": did you mean stats?`,
		"claim": `the HTTP API has no operation \"claim\": workers use the socket`,
	} {
		x.op(op, `{}`).want(t, op, 404, text)
		x.send(http.MethodGet, "/api/v1/"+op, "", "Authorization", "Bearer "+token).want(t, op+" by GET", 404, text)
	}
	wrong := x.send(http.MethodDelete, "/api/v1/stats", "", "Authorization", "Bearer "+token)
	wrong.want(t, "DELETE", 405, "send stats by GET or POST")
	if wrong.header.Get("Allow") != "GET, POST" {
		t.Errorf("it allows %q", wrong.header.Get("Allow"))
	}
	a := x.send(http.MethodGet, "/api/v1/purge", "", "Authorization", "Bearer "+token)
	a.want(t, "a change by GET", 405, "POST")
	if a.header.Get("Allow") != "POST" {
		t.Errorf("it allows %q", a.header.Get("Allow"))
	}
}

func TestHiddenPayloads(t *testing.T) {
	hidden := writable
	hidden.HidePayloads = true
	x := start(t, hidden, nil)
	x.op("enqueue", `{"queue":"mail","payload":"secret","headers":{"h":"secret"},"key":"k"}`).want(t, "enqueue", 200, "")
	a := x.op("peek", `{"queue":"mail"}`)
	a.want(t, "peek", 200, `"payload":"","priority":0`)
	a.want(t, "peek", 200, `"left_out":6`)
	if strings.Contains(a.body, "secret") || a.header.Get("Qsidecar-Payloads") != "hidden" {
		t.Errorf("%v %s", a.header, a.body)
	}
	for _, search := range []string{`"text":"sec"`, `"headers":{"h":"secret"}`} {
		x.op("peek", `{"queue":"mail",`+search+`}`).want(t, "a search", 403, "hidden")
	}
	x.op("peek", `{"queue":"mail","key":"k"}`).want(t, "a key", 200, `"key":"k"`)
	for _, payload := range []string{"secret", "other secret"} {
		definition := `{"queue":"mail","schedule":{"name":"s","every_ms":1000,"payload":"` + payload + `","headers":{"h":"` + payload + `"}}}`
		a = x.op("schedule", definition)
		a.want(t, "a declaration", 200, "")
		if strings.Contains(a.body, "secret") {
			t.Errorf("a declaration shows the payload: %s", a.body)
		}
	}
	a.want(t, "a declaration", 200, `{"field":"payload","from":"(hidden)","to":"(hidden)"},{"field":"headers","from":"(hidden)","to":"(hidden)"}`)
	a = x.op("schedules", `{"schedule":{"name":"s"}}`)
	a.want(t, "a schedule", 200, `"name":"s"`)
	if strings.Contains(a.body, "secret") || a.header.Get("Qsidecar-Payloads") != "hidden" {
		t.Errorf("%v %s", a.header, a.body)
	}
	x.Configure(writable)
	x.op("peek", `{"queue":"mail","text":"sec"}`).want(t, "a search", 200, `"scanned":1`)
	x.op("peek", `{"queue":"mail"}`).want(t, "peek with payloads", 200, `"payload":"secret"`)
	x.op("schedules", `{"schedule":{"name":"s"}}`).want(t, "a schedule", 200, `"payload":"other secret"`)
}

// TestLog shows that each change is logged with its sender, and that the log doesn't contain the token.
func TestLog(t *testing.T) {
	x := start(t, writable, nil)
	x.op("enqueue", `{"queue":"mail","jobs":null,"payload":"x"}`)
	x.op("enqueue", `{"jobs":[{"queue":"a"},{"queue":"b"}]}`)
	x.op("purge", `{"queue":"mail","state":"ready"}`)
	x.op("reload", "")
	x.op("stats", "")
	x.send(http.MethodPost, "/api/v1/pause", "{}", "Authorization", "Bearer wrong")
	log := x.log.String()
	for _, want := range []string{
		"op=enqueue by=127.0.0.1:", " auth=token queue=mail count=1 event=admin_change", `queue="a …" count=2 event=admin_change`,
		"op=purge", "level=WARN msg=\"admin change failed\" op=reload", "event=admin_denied",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, token) || strings.Contains(log, "op=stats") {
		t.Errorf("the log has too much:\n%s", log)
	}
}

func TestSecureHeaders(t *testing.T) {
	x := start(t, writable, nil)
	for _, path := range []string{"/", "/api/v1/stats", "/api/v1/openapi.json", "/none"} {
		h := x.send(http.MethodGet, path, "").header
		for name, want := range map[string]string{
			"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Content-Security-Policy": "frame-ancestors 'none'",
		} {
			if !strings.Contains(h.Get(name), want) {
				t.Errorf("%s: %s is %q, want %q", path, name, h.Get(name), want)
			}
		}
	}
}

// TestStreams shows that the API refuses requests if too many streams are open, and ends streams when the rules change.
func TestStreams(t *testing.T) {
	var x *sidecar
	x = start(t, writable, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		select {
		case <-x.Stopping(r.Context()):
		case <-r.Context().Done():
		}
	})
	var streams sync.WaitGroup
	for range maxRequests {
		streams.Go(func() { x.send(http.MethodGet, "/events", "", "Authorization", "Bearer "+token) })
	}
	testwait.Until(t, "all streams are open", func() bool { return len(x.requests) == maxRequests })
	stats := x.op("stats", "")
	stats.want(t, "one request too many", 429, `"busy"`)
	page := x.send(http.MethodGet, "/", "", "Authorization", "Bearer "+token)
	page.want(t, "one page too many", 429, "close some")
	for _, a := range []answer{stats, page} {
		if a.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
		}
	}
	changed := writable
	changed.HidePayloads = true
	x.Configure(changed)
	streams.Wait()
	testwait.Until(t, "the streams have ended", func() bool { return len(x.requests) == 0 })
	x.op("stats", "").want(t, "after the streams", 200, "")
}

// TestStreamOfOldRules changes the rules after they permitted a request, and before its stream begins.
func TestStreamOfOldRules(t *testing.T) {
	var x *sidecar
	streams := make(chan (<-chan struct{}), 1)
	x = start(t, writable, func(_ http.ResponseWriter, r *http.Request) {
		changed := writable
		changed.Users = []User{NewUser("", token+"-new")}
		x.Configure(changed)
		streams <- x.Stopping(r.Context())
	})
	x.send(http.MethodGet, "/events", "", "Authorization", "Bearer "+token).want(t, "the stream", 200, "")
	testwait.Closed(t, "the stream must end", <-streams)
}

// TestChangeOfGoneClient shows that a change continues and is logged although its client has disconnected.
func TestChangeOfGoneClient(t *testing.T) {
	x := start(t, writable, nil)
	x.op("enqueue", `{"queue":"mail"}`).want(t, "enqueue", 200, "")
	ctx, disconnect := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url+"/api/v1/purge", strings.NewReader(`{"queue":"mail","state":"ready"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	x.hold.Lock()
	release := sync.OnceFunc(x.hold.Unlock)
	defer release()
	ended := make(chan error, 1)
	go func() {
		res, err := http.DefaultClient.Do(r)
		if err == nil {
			err = res.Body.Close()
		}
		ended <- err
	}()
	testwait.Until(t, "the purge is sent", func() bool { return x.purges.Load() == 1 })
	disconnect()
	if err := testwait.Receive(t, "the client is gone", ended); err == nil {
		t.Error("the client got an answer")
	}
	testwait.Until(t, "the request has ended", func() bool { return len(x.requests) == 0 })
	release()
	testwait.Until(t, "the jobs are gone", func() bool { return strings.Contains(x.op("stats", `{"queue":"mail"}`).body, `"ready":0`) })
	if log := x.log.String(); !strings.Contains(log, "op=purge") {
		t.Errorf("the change isn't in the log:\n%s", log)
	}
}

// TestSessions shows that requests run at the same time, that a lost session is replaced, and that the sidecar's errors
// before and after its life are those of the wire.
func TestSessions(t *testing.T) {
	x := start(t, writable, nil)
	for range 3 {
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				if _, err := x.Do(t.Context(), &protocol.Request{Op: protocol.OpStats}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		x.loseSessions()
	}
	small := writable
	small.MaxFrame *= 2
	x.Configure(small) // renews the sessions
	if _, err := x.Do(t.Context(), &protocol.Request{Op: protocol.OpStatus}); err != nil {
		t.Error(err)
	}
	if _, err := x.Do(t.Context(), &protocol.Request{Op: protocol.OpPause, Queue: "q"}); wireError(err).Code != protocol.CodeForbidden {
		t.Errorf("a change of no client: %v", err)
	}
	if _, err := x.Do(t.Context(), &protocol.Request{Op: protocol.OpClaim, Queue: "q"}); wireError(err).Code != protocol.CodeUnknownOp {
		t.Errorf("claim: %v", err)
	}
	x.Close()
	if _, err := x.Do(t.Context(), &protocol.Request{Op: protocol.OpStats}); wireError(err).Code != protocol.CodeUnavailable {
		t.Errorf("after the end: %v", err)
	}
}
