package adminapi

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRefusals has a request for each reason to refuse one.
func TestRefusals(t *testing.T) {
	const pause, body, bearer = "/api/v1/pause", `{"queue":"q"}`, "Bearer " + token
	open, read, off := Rules{MaxFrame: writable.MaxFrame}, writable, writable
	read.Write = false
	off.Off = true
	for name, c := range map[string]struct {
		rules  Rules
		path   string
		header []string
		code   int
		text   string
	}{
		"without a token in the config":   {open, pause, nil, 403, "admin.token_file"},
		"a token without a config for it": {open, pause, []string{"Authorization", bearer}, 403, "admin.token_file"},
		"read-only":                       {read, pause, []string{"Authorization", bearer}, 403, "admin.access: write"},
		"no token":                        {writable, pause, nil, 401, "Bearer TOKEN"},
		"no token for a read":             {writable, "/api/v1/status", nil, 401, "Bearer TOKEN"},
		"another token":                   {writable, pause, []string{"Authorization", "Bearer " + token + "x"}, 401, "no valid token"},
		"another scheme":                  {writable, pause, []string{"Authorization", "Basic " + token}, 401, "no valid token"},
		"a forged cookie":                 {writable, pause, []string{"Cookie", NewUser("", token).cookieName() + "=AAAA.AAAA"}, 401, "no valid token"},
		"off":                             {off, pause, []string{"Authorization", bearer}, 404, "admin.access"},
		"another name of the address":     {writable, pause, []string{"Authorization", bearer, "Host", "evil.example"}, 421, "evil.example"},
		"no such operation":               {writable, "/api/v1/claim", []string{"Authorization", bearer}, 404, "unknown_op"},
		"nothing there":                   {writable, "/api/v2/pause", []string{"Authorization", bearer}, 404, "unknown_op"},
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, c.rules, nil)
			a := x.send(http.MethodPost, c.path, body, c.header...)
			a.want(t, c.path, c.code, c.text)
			if !strings.Contains(a.body, `"ok":false`) || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("the error is %s", a.body)
			}
			if (a.code == 401) != (a.header.Get("WWW-Authenticate") != "") {
				t.Errorf("%d has WWW-Authenticate %q", a.code, a.header.Get("WWW-Authenticate"))
			}
			x.Configure(writable)
			if got := x.op("stats", "{}"); strings.Contains(got.body, `"paused":true`) {
				t.Errorf("it was carried out: %s", got.body)
			}
		})
	}
}

func TestHosts(t *testing.T) {
	x := start(t, Rules{MaxFrame: writable.MaxFrame, Host: "Admin.internal"}, nil)
	for host, code := range map[string]int{
		"localhost": 200, "LOCALHOST:9464": 200, "127.0.0.1:1": 200, "127.9.9.9": 200, "[::1]:80": 200, "admin.internal:5": 200,
		"localhost.evil.example": 421, "evil.example:9464": 421, "10.0.0.1": 421, "127.0.0.1.evil.example": 421,
	} {
		x.send(http.MethodGet, "/api/v1/status", "", "Host", host).want(t, host, code, "")
	}
	x.Configure(Rules{MaxFrame: writable.MaxFrame, AnyHost: true})
	x.send(http.MethodGet, "/api/v1/status", "", "Host", "evil.example").want(t, "any host", 200, "uptime_ms")
}

// login returns the cookie of a login.
func (x *sidecar) login(t *testing.T) string {
	t.Helper()
	a := x.send(http.MethodPost, "/login", url.Values{"token": {token}}.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	a.want(t, "login", http.StatusSeeOther, "")
	set := a.header.Get("Set-Cookie")
	for _, attribute := range []string{"; HttpOnly", "; SameSite=Strict", "; Max-Age=43200"} {
		if !strings.Contains(set, attribute) {
			t.Errorf("the cookie is %q, without %q", set, attribute)
		}
	}
	for _, secret := range []string{token, "Path=", "Secure"} {
		if strings.Contains(set, secret) {
			t.Errorf("the cookie %q contains %s", set, secret)
		}
	}
	cookie, _, _ := strings.Cut(set, ";")
	return cookie
}

func TestLogin(t *testing.T) {
	x := start(t, writable, nil)
	const form = "application/x-www-form-urlencoded"
	for body, next := range map[string]string{
		"token=" + token: "/", "token=" + token + "&next=%2Fqueue%3Fname%3Dmail": "/queue?name=mail", "token=" + token + "&next=%2F%2Fevil.example": "/",
		"token=" + token + "&next=https%3A%2F%2Fevil.example": "/", "token=" + token + "&next=%2F%09%2Fevil.example": "/", "token=wrong": "/login?failed=1", "token=wrong&next=%2Fdead": "/login?failed=1&next=%2Fdead", "": "/login?failed=1",
	} {
		if a := x.send(http.MethodPost, "/login", body, "Content-Type", form); a.code != http.StatusSeeOther || a.header.Get("Location") != "."+next {
			t.Errorf("%q: %d to %q, want %q", body, a.code, a.header.Get("Location"), next)
		}
	}
	x.send(http.MethodPost, "/login", "token="+token, "Content-Type", form, "Sec-Fetch-Site", "cross-site").want(t, "another site's login", 403, "another site")
	x.send(http.MethodPost, "/login", "token="+strings.Repeat("x", formBytes), "Content-Type", form).want(t, "a large login", 413, "more than")
}

// TestCookie shows what a browser with a cookie can do, and what the pages of other sites can't make it do.
func TestCookie(t *testing.T) {
	var csrf, actor, posted string
	var x *sidecar
	x = start(t, writable, func(w http.ResponseWriter, r *http.Request) {
		_, csrf, actor = x.Access(r)
		if r.Method == http.MethodPost {
			posted = r.PostFormValue("queue")
		}
	})
	cookie := x.login(t)
	x.send(http.MethodGet, "/", "", "Cookie", cookie).want(t, "the page", 200, "")
	if csrf == "" || !strings.HasPrefix(actor, "127.0.0.1:") || !strings.HasSuffix(actor, " (cookie)") {
		t.Errorf("the page gets the CSRF token %q of %q", csrf, actor)
	}
	const form = "application/x-www-form-urlencoded"
	pause := func(header ...string) answer {
		return x.send(http.MethodPost, "/api/v1/pause", `{"queue":"q"}`, append(header, "Cookie", cookie)...)
	}
	pause().want(t, "no CSRF token", 403, "CSRF")
	pause("X-CSRF-Token", csrf+"x").want(t, "another CSRF token", 403, "CSRF")
	pause("X-CSRF-Token", csrf, "Sec-Fetch-Site", "cross-site").want(t, "another site", 403, "another site")
	pause("X-CSRF-Token", csrf, "Origin", "https://evil.example").want(t, "another origin", 403, "another site")
	pause("X-CSRF-Token", csrf, "Sec-Fetch-Site", "same-origin").want(t, "the page's script", 200, `"ok":true`)
	x.send(http.MethodPost, "/form", "queue=q", "Cookie", cookie, "Content-Type", form).want(t, "a form without CSRF token", 403, "CSRF")
	x.send(http.MethodPost, "/form", "queue=q&csrf_token="+csrf, "Cookie", cookie, "Content-Type", form).want(t, "a form", 200, "")
	if posted != "q" {
		t.Errorf("the page gets the field %q", posted)
	}
	x.send(http.MethodGet, "/api/v1/stats", "", "Cookie", cookie).want(t, "a read", 200, `"paused":true`)

	again := x.login(t)
	x.send(http.MethodPost, "/form", "csrf_token="+csrf, "Cookie", again, "Content-Type", form).want(t, "the CSRF token of another login", 403, "CSRF")
	x.send(http.MethodPost, "/logout", "", "Cookie", cookie, "X-CSRF-Token", csrf).want(t, "logout", http.StatusSeeOther, "")

	read := writable
	read.Write = false
	x.Configure(read)
	if x.send(http.MethodGet, "/", "", "Cookie", again); csrf == "" {
		t.Error("a reader can't log out")
	}
	x.send(http.MethodPost, "/form", "csrf_token="+csrf, "Cookie", again, "Content-Type", form).want(t, "a change by a reader", 403, "admin.access: write")
	x.send(http.MethodPost, "/logout", "csrf_token="+csrf, "Cookie", again, "Content-Type", form).want(t, "a reader's logout", http.StatusSeeOther, "")

	changed := writable
	changed.Users = []User{NewUser("", "another-token-0123456")}
	x.Configure(changed)
	x.send(http.MethodGet, "/api/v1/stats", "", "Cookie", cookie).want(t, "a cookie of the old token", 401, "")
	x.op("stats", "{}").want(t, "the old token", 401, "")
}

func TestCookieExpires(t *testing.T) {
	r := NewUser("", token)
	now := time.Now()
	cookie := r.newCookie(now)
	for _, c := range []struct {
		value string
		at    time.Time
		want  bool
	}{
		{cookie, now, true},
		{cookie, now.Add(cookieLifetime - 2*time.Second), true},
		{cookie, now.Add(cookieLifetime), false},
		{"B" + cookie[1:], now, false},
		{cookie[:len(cookie)-1], now, false},
		{"", now, false},
	} {
		if got := r.isCookie(c.value, c.at); got != c.want {
			t.Errorf("%q is valid: %v, want %v", c.value, got, c.want)
		}
	}
}

// TestPageNeedsLogin shows what a browser without a cookie gets.
func TestPageNeedsLogin(t *testing.T) {
	x := start(t, writable, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("the page")) })
	const html = "text/html,*/*"
	if a := x.send(http.MethodGet, "/queues", "", "Accept", html); a.code != http.StatusSeeOther || a.header.Get("Location") != "./login?next=%2Fqueues" {
		t.Errorf("a browser gets %d %v", a.code, a.header)
	}
	x.send(http.MethodGet, "/events", "").want(t, "a stream", 401, "no valid token")
	x.send(http.MethodPost, "/queues", "", "Accept", html).want(t, "a form", 401, "no valid token")
	for _, path := range []string{"/login", "/assets/app.css"} {
		x.send(http.MethodGet, path, "").want(t, path, 200, "the page")
	}
	x.send(http.MethodGet, "/assets/../queues", "").want(t, "a path out of the assets", 401, "")
	x.Configure(Rules{MaxFrame: writable.MaxFrame})
	x.send(http.MethodGet, "/queues", "").want(t, "without a token in the config", 200, "the page")
	x.send(http.MethodPost, "/queues", "").want(t, "a change", 403, "admin.token_file")
}

// TestProxy has the logins and changes of a browser whose proxy passes on its host or another one, keeps a prefix or leaves it out,
// and has TLS or not. A browser without TLS sends no Sec-Fetch-Site.
func TestProxy(t *testing.T) {
	x := start(t, writable, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.RequestURI()) }) //nolint:gosec // the test reads it
	const form = "application/x-www-form-urlencoded"
	for _, c := range []struct {
		origin, prefix string
		set            bool // admin.base_url is that
		host           string
		code           int
	}{
		{"https://ops.example", "", false, "127.0.0.1:9464", 303},
		{"https://ops.example", "/q", false, "127.0.0.1:9464", 404}, // the path isn't known
		{"https://ops.example", "", false, "ops.example", 421},
		{"http://ops.example", "", false, "127.0.0.1:9464", 403},
		{"https://ops.example", "", true, "127.0.0.1:9464", 303},
		{"https://ops.example", "", true, "ops.example", 303},
		{"https://ops.example:8443", "/q", true, "ops.example:8443", 303},
		{"https://ops.example:8443", "/q/r", true, "ops.example", 303},
		{"http://ops.example", "", true, "127.0.0.1:9464", 303},
		{"http://ops.example:81", "/q", true, "ops.example:81", 303},
		{"http://ops.example", "/q", true, "ops.example", 303},
		{"http://[fd00::1]:81", "", true, "[fd00::1]:81", 303},
	} {
		rules := writable
		if c.set {
			rules.Origin, rules.Prefix = c.origin, c.prefix
		}
		x.Configure(rules)
		header := []string{"Host", c.host, "Origin", c.origin, "Content-Type", form}
		if strings.HasPrefix(c.origin, "https:") {
			header = append(header, "Sec-Fetch-Site", "same-origin")
		}
		a := x.send(http.MethodPost, c.prefix+"/login", "token="+token+"&next=/dead", header...)
		if c.code == 404 {
			a.want(t, "an unknown prefix", 401, "")
			continue
		}
		if a.code != c.code || c.code == 303 && a.header.Get("Location") != "./dead" {
			t.Errorf("%+v: login: %d to %q: %s", c, a.code, a.header.Get("Location"), a.body)
		}
		if c.code != 303 {
			a.want(t, "the advice", c.code, "set admin.base_url to")
			continue
		}
		set := a.header.Get("Set-Cookie")
		if strings.Contains(set, "; Secure") != strings.HasPrefix(c.origin, "https:") {
			t.Errorf("%+v: the cookie is %q", c, set)
		}
		cookie, _, _ := strings.Cut(set, ";")
		value := cookie[strings.Index(cookie, "=")+1:]
		for _, prefix := range []string{c.prefix, ""} {
			x.send(http.MethodGet, prefix+"/queue?name=a%2Fb", "", "Host", c.host, "Cookie", cookie).want(t, "a page", 200, "/queue?name=a%2Fb")
			x.send(http.MethodPost, prefix+"/do", "csrf_token="+NewUser("", token).csrf(value), append(header, "Cookie", cookie)...).want(t, "a form", 200, "/do")
			x.send(http.MethodGet, prefix+"/api/v1/stats", "", "Host", c.host, "Cookie", cookie).want(t, "the API", 200, `"ok":true`)
		}
		if c.prefix != "" {
			if a := x.send(http.MethodGet, c.prefix+"?a=b", "", "Host", c.host, "Cookie", cookie); a.header.Get("Location") != c.prefix+"/?a=b" {
				t.Errorf("%s leads to %q", c.prefix, a.header.Get("Location"))
			}
		}
		evil := slices.Concat(header, []string{"Cookie", cookie, "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"})
		x.send(http.MethodPost, c.prefix+"/do", "csrf_token="+NewUser("", token).csrf(value), evil...).want(t, "another site's form", 403, "another site")
	}
}
