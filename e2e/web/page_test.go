package web

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/sqlite"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

const (
	token    = "0123456789abcdef0123456789abcdef"
	adaToken = "fedcba9876543210fedcba9876543210"
	html     = `<script>window.ran = 1</script><img src="/x" onerror="window.ran = 2">`
)

// pageOf starts a sidecar with a web page, and returns it and the page's address.
func pageOf(t *testing.T, s *kit.Site, name, access string) (*kit.Sidecar, string) {
	t.Helper()
	return pageWith(t, s, name, access, "")
}

// pageWith is pageOf with more options, each after a comma.
func pageWith(t *testing.T, s *kit.Site, name, access, options string) (*kit.Sidecar, string) {
	t.Helper()
	file := filepath.Join(s.Dir, "token")
	port, err := local.FreePort()
	ada := filepath.Join(s.Dir, "ada")
	if err == nil {
		err = os.WriteFile(file, []byte(token+"\n"), 0o600)
	}
	if err == nil {
		err = os.WriteFile(ada, []byte(adaToken+"\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Extra = fmt.Sprintf("admin: {listen: 127.0.0.1:%s, token_file: %s, users: {ada: %s}, access: %s%s}\n", port, file, ada, access, options)
	s.Queues = "  \"*\": {retention: {done: 1h}, max_attempts: 1}\n"
	return s.Start(name), "http://127.0.0.1:" + port
}

// kill enqueues jobs and makes them die with the error.
func kill(c *kit.Conn, queue, message string, jobs ...kit.Msg) (ids []string) {
	for i := range jobs {
		jobs[i]["queue"] = queue
	}
	for _, j := range c.Must(kit.Msg{"op": "enqueue", "jobs": jobs}).Jobs {
		ids = append(ids, j.ID)
	}
	for dead := 0; dead < len(jobs); {
		var leases []string
		for _, j := range c.Must(kit.Msg{"op": "claim", "queue": queue, "max": 1000, "wait_ms": kit.WaitMS()}).Jobs {
			leases = append(leases, j.Lease)
		}
		dead += c.Must(kit.Msg{"op": "nack", "leases": leases, "error": message}).Nacked
	}
	return ids
}

// payloads returns n jobs.
func payloads(n int) (jobs []kit.Msg) {
	for i := range n {
		jobs = append(jobs, kit.Msg{"payload": fmt.Sprintf(`{"user":%d}`, i)})
	}
	return jobs
}

// store stores the jobs of the scenarios, and returns the ids of some.
func store(t *testing.T, sc *kit.Sidecar) map[string]string {
	t.Helper()
	c := sc.Dial()
	jobs := map[string]string{}
	kill(c, "fails", "no such user 17", payloads(4)...) // retryFew retries the first one
	jobs["dead"] = kill(c, "fails", "timeout after 30 s", payloads(2)...)[0]
	jobs["chosen"] = kill(c, "chosen", "no", payloads(4)...)[1]
	c.Must(kit.Msg{"op": "pause", "queue": "chosen"})
	jobs["html"] = kill(c, "hostile", html, kit.Msg{"payload": html, "key": html, "headers": map[string]string{"x": html}})[0]
	noise := make([]byte, 3000)
	_, _ = rand.Read(noise) // it never fails
	noise[0] = 0xff         // not UTF-8
	jobs["bytes"] = c.Must(kit.Msg{"op": "enqueue", "queue": "hostile", "payload_b64": base64.StdEncoding.EncodeToString(noise)}).Job.ID
	c.Must(kit.Msg{"op": "enqueue", "queue": "hostile", "payload": html})
	c.Must(kit.Msg{"op": "pause", "queue": "fails"}) // a retried job stays ready
	return jobs
}

func TestPageOnSQLite(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	input := usePage(t, s, "login", "logoutBesideEvents", "rebinding", "otherSite", "hostile", "live", "find", "findInQueue", "changeJob", "selectJobs", "ownName", "retryFew", "retryAll")
	_, input["base"] = pageOf(t, s, "b", "read")
	browse(t, s, input, "readOnly")
}

// TestPageOnPostgres runs the scenarios that search and change jobs. The others show what the page does before it asks the sidecar.
func TestPageOnPostgres(t *testing.T) {
	t.Parallel()
	s, _ := kit.NewPostgresSite(t)
	usePage(t, s, "live", "find", "findInQueue", "changeJob", "selectJobs", "retryFew", "retryAll")
}

// usePage runs scenarios on the page of a sidecar whose workers run, and returns their input.
func usePage(t *testing.T, s *kit.Site, scenarios ...string) map[string]any {
	t.Helper()
	sc, base := pageOf(t, s, "a", "write")
	jobs := store(t, sc)
	c := sc.Dial()
	bulk, keys := 1000, 1000
	if kit.Soak {
		bulk, keys = 100_000, 1_000_000
	}
	for n := 0; n < bulk; n += 1000 {
		some := payloads(1000)
		for i := range some {
			some[i]["key"] = fmt.Sprint("user-", n+i)
		}
		kill(c, "bulk", "the mail server is gone", some...)
	}
	c.Must(kit.Msg{"op": "pause", "queue": "bulk"})
	for n := bulk; n < keys; n += 1000 {
		some := payloads(1000)
		for i := range some {
			some[i]["queue"], some[i]["key"] = "bulk", fmt.Sprint("user-", n+i)
		}
		c.Must(kit.Msg{"op": "enqueue", "jobs": some})
	}
	sc.Work("live", "--", "cat")
	input := map[string]any{"base": base, "token": token, "ada": adaToken, "jobs": jobs, "html": html, "bulk": bulk, "keys": keys}
	browse(t, s, input, scenarios...)
	return input
}

func TestAccessibility(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	sc, base := pageOf(t, s, "a", "write")
	jobs := store(t, sc)
	oldHours(t, s)
	const long = "a-tenant-with-a-long-name.of-a-region:0815/invoices_and_reminders"
	kill(sc.Dial(), long, "no", payloads(100)...)
	c := sc.Dial()
	c.Must(kit.Msg{"op": "schedule", "queue": long, "schedule": kit.Msg{"name": "the-report-of-" + long, "cron": "0 6 * * *", "tz": "Europe/Berlin"}})
	batch := c.Must(kit.Msg{"op": "open_batch", "queue": long, "on": "success"}).Batch.ID
	c.Must(kit.Msg{"op": "enqueue", "queue": long, "batch": batch})
	c.Must(kit.Msg{"op": "open_batch", "queue": long, "on": "finish", "batch": batch})
	c.Must(kit.Msg{"op": "change_schedule", "queue": long, "schedule": kit.Msg{"name": "the-report-of-" + long}, "do": "run"})
	c.Must(kit.Msg{"op": "hello", "worker": "worker-1@a-host-with-a-long-name.example.com:123456"})
	c.Enqueue(long, 1)
	c.ClaimOne(long)
	browse(t, s, map[string]any{"base": base, "token": token, "jobs": jobs, "batch": batch}, "fourteenDays", "accessible")
}

// oldHours stores what other sidecars did to the queue "old" in the last 300 hours.
func oldHours(t *testing.T, s *kit.Site) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: s.File()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	now := time.Now()
	var rows []backends.HourTotals
	for ago := int64(1); ago <= 300; ago++ {
		h := backends.HourTotals{Hour: backends.HourOf(now) - ago, Queue: "old", Totals: backends.Totals{Ready: ago, Enqueued: 900 + ago, Acked: 900, Failed: 3}}
		h.Runs[5] = 900
		rows = append(rows, h)
	}
	if err := db.AddHistory(t.Context(), now, rows); err != nil {
		t.Fatal(err)
	}
}

// TestBudget checks the size of the page's first load with 1,000 queues.
func TestBudget(t *testing.T) {
	t.Parallel()
	const queues = 1000
	s := kit.NewSite(t)
	sc, base := pageOf(t, s, "a", "write")
	var all []kit.Msg
	for i := range queues {
		all = append(all, kit.Msg{"queue": fmt.Sprintf("tenant-%04d.mail", i), "payload": "hello"})
	}
	sc.Dial().Must(kit.Msg{"op": "enqueue", "jobs": all})
	browse(t, s, map[string]any{"base": base, "token": token, "queues": queues}, "budget")
}
