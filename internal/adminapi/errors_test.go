package adminapi

import (
	"net/http"
	"testing"
)

// TestErrorTexts checks the texts of errors that a user can cause: each names the wrong part of the request, and the right form of it.
func TestErrorTexts(t *testing.T) {
	x := start(t, writable, nil)
	auth := []string{"Authorization", "Bearer " + token}
	for _, c := range []struct{ method, path, body, text string }{
		{http.MethodGet, "/api/v1/pause?queue=q", "", "pause changes something: send it by POST, with its fields as a JSON object in the body"},
		{http.MethodPut, "/api/v1/pause", "{}", "PUT isn't an operation's method: send pause by POST"},
		{http.MethodGet, "/api/v2/stats", "", "nothing is at /api/v2/stats: the operations are at /api/v1/OP (GET for those that only read, POST for all), see /api/v1/openapi.json"},
		{http.MethodGet, "/api/v1/frobnicate", "", `there is no op \"frobnicate\" (see /api/v1/openapi.json)`},
		{http.MethodPost, "/api/v1/pause", "queue=q", `the body is not one JSON object, such as {\"queue\":\"mail\"}, and this looks like a form`},
		{http.MethodPost, "/api/v1/pause", `["q"]`, `the body is not one JSON object, such as {\"queue\":\"mail\"}"`},
		{http.MethodPost, "/api/v1/pause", `{'queue':'q'}`, `the body is not one JSON object: invalid character`},
		{http.MethodPost, "/api/v1/pause", `{"op":"pause","queue":"q"}`, "the operation is in the address: leave op out of the body"},
		{http.MethodPost, "/api/v1/pause", `{"que":"q"}`, `there is no field \"que\" here: did you mean queue?`},
		{http.MethodGet, "/api/v1/stats?queue=a&queue=b", "", "queue is in the query twice"},
		{http.MethodGet, "/api/v1/batches?all=maybe", "", "all must be true or false"},
		{http.MethodGet, "/api/v1/peek?newest=1st", "", "newest must be true or false"},
		{http.MethodGet, "/api/v1/peek?max=ten", "", "max must be an integer from 1 to 1000"},
		{http.MethodGet, "/api/v1/peek?limit=5", "", `peek takes no field \"limit\" in the query: did you mean max?`},
		{http.MethodGet, "/api/v1/stats?state=dead", "", `stats takes no field \"state\" in the query: it takes queue`},
		{http.MethodPost, "/api/v1/pause?queue=q", "", "a POST has its fields as a JSON object in the body, and this one has them in the query: move them"},
		{http.MethodPost, "/api/v1/pause", `{'queue':'q'}`, `JSON has double quotes, as in {\"queue\":\"mail\"}`},
		{http.MethodGet, "/api/v1/fleet?queue=q", "", `fleet takes no field \"queue\" in the query: it takes no fields`},
	} {
		code := http.StatusBadRequest
		switch {
		case c.path == "/api/v2/stats" || c.path == "/api/v1/frobnicate":
			code = http.StatusNotFound
		case c.method == http.MethodPut || c.method == http.MethodGet && c.path == "/api/v1/pause?queue=q":
			code = http.StatusMethodNotAllowed
		}
		x.send(c.method, c.path, c.body, auth...).want(t, c.method+" "+c.path+" "+c.body, code, c.text)
	}
	x.send(http.MethodGet, "/api/v1/stats", "").want(t, "no token", 401,
		"the request has no valid token: send that of admin.token_file, or your own of admin.users, as Authorization: Bearer TOKEN")
	x.send(http.MethodGet, "/api/v1/stats", "", append(auth, "Host", "evil.example")...).want(t, "a foreign host", 421,
		`the request is for the host \"evil.example\", which isn't one of this listener: use localhost, 127.0.0.1 or the host in admin.`)
	read := writable
	read.Write = false
	x.Configure(read)
	x.op("pause", `{"queue":"q"}`).want(t, "a change of a reader", 403, "the admin listener only serves reads: set admin.access: write, and admin.token_file or admin.users, in the sidecar's config to permit changes")
	read.HidePayloads = true
	x.Configure(read)
	x.op("peek", `{"queue":"q","text":"a"}`).want(t, "a search of hidden payloads", 403, "payloads and headers are hidden (admin.payloads), so they can't be searched: search by id or key")
	read.Off = true
	x.Configure(read)
	x.op("stats", "").want(t, "no access", 404, "the API and the page are off (admin.access in the sidecar's config): this listener has /metrics /healthz /startupz /readyz")
}
