package adminapi

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

const adaToken, bobToken = "token-of-ada-0123456", "token-of-bob-0123456"

// named are rules with two users besides the token without a name.
func named(users ...User) Rules {
	r := writable
	r.Users = append([]User{NewUser("", token)}, users...)
	return r
}

// loginAs returns the cookies of a login, with which a browser sends what it has.
func (x *sidecar) loginAs(t *testing.T, secret string, header ...string) []string {
	t.Helper()
	a := x.send(http.MethodPost, "/login", url.Values{"token": {secret}}.Encode(), append(header, "Content-Type", "application/x-www-form-urlencoded")...)
	a.want(t, "login", http.StatusSeeOther, "")
	return a.header.Values("Set-Cookie")
}

// TestChangesHaveNames shows that each change is logged and listed with the user who sent it, by token or cookie.
func TestChangesHaveNames(t *testing.T) {
	var csrf, user string
	var x *sidecar
	x = start(t, named(NewUser("ada", adaToken), NewUser("bob", bobToken)), func(_ http.ResponseWriter, r *http.Request) {
		_, csrf, _ = x.Access(r)
		user = x.User(r)
	})
	x.send(http.MethodPost, "/api/v1/enqueue", `{"queue":"mail"}`, "Authorization", "Bearer "+adaToken).want(t, "ada's change", 200, "")
	cookie, _, _ := strings.Cut(x.loginAs(t, bobToken)[0], ";")
	x.send(http.MethodGet, "/", "", "Cookie", cookie)
	if user != "bob" {
		t.Errorf("the page is shown to %q", user)
	}
	x.send(http.MethodPost, "/api/v1/pause", `{"queue":"mail"}`, "Cookie", cookie, "X-CSRF-Token", csrf).want(t, "bob's change", 200, "")
	x.send(http.MethodPost, "/api/v1/retry", `{"queue":"mail","ids":["999"]}`, "Authorization", "Bearer "+token).want(t, "a change without a name", 200, "")
	x.send(http.MethodPost, "/api/v1/reload", "", "Authorization", "Bearer "+adaToken).want(t, "a change that fails", 422, "")
	for _, want := range []string{"op=enqueue by=127.0.0.1", "auth=token user=ada queue=mail count=1", "auth=cookie user=bob queue=mail", "op=reload by=127.0.0.1", "event=admin_change_failed"} {
		if !strings.Contains(x.log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, x.log)
		}
	}
	var got []string
	for _, c := range x.Changes() {
		got = append(got, c.User+" "+string(c.Op)+" "+c.Queue)
	}
	if want := "ada reload | retry mail|bob pause mail|ada enqueue mail"; strings.Join(got, "|") != want {
		t.Errorf("the list of changes is %q, want %q", strings.Join(got, "|"), want)
	}
	for range maxChanges + 10 {
		x.remember(Change{User: "many"})
	}
	if n := len(x.Changes()); n != maxChanges {
		t.Errorf("%d changes are remembered", n)
	}
	for _, secret := range []string{adaToken, bobToken, token} {
		if strings.Contains(x.log.String(), secret) {
			t.Errorf("the log has the token %s", secret)
		}
	}
}

// TestRemovedUsers shows that a reload ends the session of a user that it removes, or whose token it changes, and no other one.
func TestRemovedUsers(t *testing.T) {
	ada, bob := NewUser("ada", adaToken), NewUser("bob", bobToken)
	x := start(t, named(ada, bob), nil)
	cookies := map[string]string{}
	for name, secret := range map[string]string{"ada": adaToken, "bob": bobToken} {
		cookies[name], _, _ = strings.Cut(x.loginAs(t, secret)[0], ";")
	}
	check := func(what string, codes map[string]int) {
		t.Helper()
		for name, code := range codes {
			x.send(http.MethodGet, "/api/v1/status", "", "Cookie", cookies[name]).want(t, what+": "+name, code, "")
		}
	}
	check("both", map[string]int{"ada": 200, "bob": 200})
	x.Configure(named(bob))
	check("ada removed", map[string]int{"ada": 401, "bob": 200})
	x.send(http.MethodPost, "/api/v1/pause", `{"queue":"q"}`, "Authorization", "Bearer "+adaToken).want(t, "her token", 401, "")
	x.Configure(named(NewUser("ada", bobToken)))
	check("bob's token is ada's now", map[string]int{"ada": 401, "bob": 401})
	x.Configure(named(ada, NewUser("bob", "token-of-bob-9876543")))
	check("bob has another token", map[string]int{"ada": 200, "bob": 401})
}

// TestLongChangeOfARemovedUser shows that an operation that runs in the background ends with its user.
func TestLongChangeOfARemovedUser(t *testing.T) {
	r := newRules(named(NewUser("ada", adaToken)))
	c := client{auth: authToken, user: NewUser("ada", adaToken)}
	if e := r.forbidsChange(c); e != nil {
		t.Errorf("before: %v", e)
	}
	if e := newRules(named()).forbidsChange(c); e == nil {
		t.Error("a removed user can go on")
	}
}

// TestLoginAsAnother shows that a browser that logs in as another user is that user.
func TestLoginAsAnother(t *testing.T) {
	var user string
	var x *sidecar
	x = start(t, named(NewUser("ada", adaToken), NewUser("bob", bobToken)), func(_ http.ResponseWriter, r *http.Request) { user = x.User(r) })
	first, _, _ := strings.Cut(x.loginAs(t, adaToken)[0], ";")
	set := x.loginAs(t, bobToken, "Cookie", first)
	if len(set) != 2 || !strings.HasPrefix(set[0], strings.Split(first, "=")[0]+"=;") || !strings.Contains(set[0], "Max-Age=0") {
		t.Fatalf("the second login sets %q", set)
	}
	second, _, _ := strings.Cut(set[1], ";")
	if x.send(http.MethodGet, "/", "", "Cookie", second); user != "bob" {
		t.Errorf("the browser is %q", user)
	}
}
