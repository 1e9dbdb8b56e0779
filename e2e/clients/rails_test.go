package clients

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// rails are the Debian suites whose Rails runs the adapter of Active Job.
var rails = map[string]string{"bookworm": "6.1.", "trixie": "7.2."}

// TestRails runs an application on two releases of Rails. It uses what the generator writes, all ways to enqueue, and
// jobs that fail. Workers are stopped and killed.
func TestRails(t *testing.T) {
	if testing.Short() {
		t.Skip("make check runs this")
	}
	t.Parallel()
	for suite, version := range rails {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSite(t)
			s.Queues = "  \"*\": {}\n  failing: {max_attempts: 2, backoff: {initial: 1ms, max: 1ms}}\n"
			sc := s.Start("a")
			app := clientlib.NewRailsApp(t, suite, filepath.Join(s.Dir, "shop"))
			app.Env = append(app.Env, "SHOP_DATABASE="+s.File())
			app.UseGem()
			if got := app.Run(nil, "ruby", "bin/rails", "--version"); !strings.HasPrefix(got, "Rails "+version) {
				t.Fatalf("%s has %q, want %s", suite, got, version)
			}
			procfile := railsInstall(app)
			unit := app.Read("config/qsidecar-worker.service")
			start := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit)
			if len(start) == 0 || !strings.Contains(unit, "WorkingDirectory="+app.Dir+"\n") {
				t.Fatalf("the unit is %s", unit)
			}
			worker := func(command string) *clientlib.Worker {
				w := clientlib.NewWorker(t, sc, app.Env, "env", "sh", "-c", "exec "+command)
				w.Dir = app.Dir
				return w
			}
			railsJobs(app, worker(procfile+" -c 1 -q default -q inside -q ordered -q orders -q retried -q failing -q mailers -q once"))
			railsStopped(worker(start[1]), app)
			railsKilled(worker(start[1]), app)
			railsOddPlaces(app, worker("false"))
			if version == "7.2." {
				railsEnqueueAll(app, worker("false"))
			}
			railsMisspelt(worker("qsidecar-work --rails --drain -q default -q mial"))
			railsMinimal(t, sc, suite)
			total := kit.Size(100_000)
			if version == "7.2." || kit.Soak { // the adapter is the same
				checkMemory(t, total, "bytes", 2<<20, app.Command(nil, "ruby", "bin/rails", "runner", kit.Path("e2e/clients/testdata/memory.rb"), strconv.Itoa(total), "behind"))
				railsOutlives(app, procfile+" -c 8 -q quick")
			}
			w := worker("ruby test/jobs_test.rb")
			w.Start()
			w.WaitExit()
		})
	}
}

// railsInstall runs the generator, also a second time, and returns the command of the worker in the Procfile.
func railsInstall(app *clientlib.RailsApp) string {
	app.T.Helper()
	files := []string{"config/application.rb", "config/environments/production.rb", "config/environments/test.rb"}
	for range 2 {
		app.Run(nil, "ruby", "bin/rails", "generate", "qsidecar:install")
		for i, want := range []string{":qsidecar", ":qsidecar", ":test"} {
			got := regexp.MustCompile(`(?m)^ *config\.active_job\.queue_adapter = .*$`).FindAllString(app.Read(files[i]), -1)
			if len(got) != 1 || !strings.HasSuffix(got[0], " = "+want) {
				app.T.Errorf("%s has %q, want the adapter %s once", files[i], got, want)
			}
		}
		if got := app.Read("Procfile"); got != "web: bundle exec puma\nworker: bundle exec qsidecar-work --rails\n" {
			app.T.Errorf("the Procfile is %q", got)
		}
	}
	_, command, _ := strings.Cut(strings.TrimSpace(app.Read("Procfile")), "\nworker: ")
	return command
}

// runner runs code of the application.
func runner(app *clientlib.RailsApp, w *clientlib.Worker, code string) string {
	app.T.Helper()
	return app.Run(w.Env, "ruby", "bin/rails", "runner", code)
}

// railsJobs enqueues jobs in all ways, and compares what a worker did with them.
func railsJobs(app *clientlib.RailsApp, w *clientlib.Worker) {
	w.T.Helper()
	runner(app, w, "script/enqueue.rb")
	_, before := w.Done() // once, which the script ran itself
	if got := w.Counts("once"); !slices.Equal(before, []string{"retried 1", "retried 1"}) || got.Total() != 1 {
		w.T.Errorf("a delivery that was repeated ran as %q and left %+v, want one retry", before, got)
	}
	w.Start()
	for _, queue := range []string{"inside", "ordered", "orders", "retried", "mailers", "once"} {
		w.WaitEmpty(queue)
	}
	testwait.Until(w.T, "only the job of wait_until is left in the queue default", func() bool {
		got := w.Counts("default")
		return got.Scheduled == 1 && got.Total() == 1
	})
	testwait.Until(w.T, "only the three jobs whose errors escaped are left in the queue failing, dead", func() bool {
		got := w.Counts("failing")
		return got.Dead == 3 && got.Total() == 3
	})
	w.Terminate()
	_, lines := w.Done()
	lines = lines[len(before):]
	var ordered []string
	for _, line := range lines {
		if word, _, _ := strings.Cut(line, " "); slices.Contains([]string{"first", "middle", "last"}, word) {
			ordered = append(ordered, word)
		}
	}
	if want := []string{"first", "middle", "last"}; !slices.Equal(ordered, want) {
		w.T.Errorf("jobs with priorities ran in the order %v, want %v", ordered, want)
	}
	want := []string{
		"later 1", "inserted 1", "twice 1", "twice 1", "executor:true id:true 1", "first 1", "middle 1", "last 1", "lamp 1", "gone 1", "mail for ada",
		"retried 1", "retried 2", "retried 3", // by Active Job
		"retried 2", "retried 3", // the retry of once
		"discarded 1", "final 1",
		"escaping 1", "escaping 1", // the attempts of the queue
		"exhausted 1", "exhausted 2", "exhausted 2", // those of Active Job, then another one of the queue
	}
	slices.Sort(want)
	slices.Sort(lines)
	if !slices.Equal(lines, want) {
		w.T.Errorf("the worker ran\n%q, want\n%q; output:\n%s", lines, want, w.Output)
	}
}

// railsStopped sends SIGTERM to a worker during a job. The job learns of it, and continues in the next worker.
func railsStopped(w *clientlib.Worker, app *clientlib.RailsApp) {
	w.T.Helper()
	runner(app, w, "GateJob.perform_later(true)")
	w.Start()
	w.DoneAtLeast(1)
	const queues = "queues default, "
	if out := w.Output.String(); !strings.Contains(out, queues) || !strings.Contains(out, "mailers") || !strings.Contains(out, "orders") ||
		!strings.Contains(out, "concurrency 3") {
		w.T.Errorf("the worker's first lines are %q, want the queues of all jobs, and the size of the pool", out)
	}
	if err := w.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.T.Fatal(err)
	}
	w.WaitExit()
	if _, lines := w.Done(); !slices.Equal(lines, []string{"begun 1", "ended 1"}) || w.Counts("gate").Total() != 1 {
		w.T.Errorf("a stopped worker ran %q and left %+v, want the rest of the job", lines, w.Counts("gate"))
	}
	w.Start()
	w.WaitEmpty("gate")
	w.Terminate()
	if _, lines := w.Done(); !slices.Equal(lines, []string{"begun 1", "ended 1", "continued 2"}) {
		w.T.Errorf("the workers before and after a deployment ran %q", lines)
	}
}

// railsKilled kills a worker during a job. The next worker runs it again.
func railsKilled(w *clientlib.Worker, app *clientlib.RailsApp) {
	w.T.Helper()
	runner(app, w, "GateJob.perform_later(false)")
	w.Start()
	w.DoneAtLeast(1)
	w.Kill()
	w.OpenGate()
	w.Start()
	w.WaitEmpty("gate")
	w.Terminate()
	if _, lines := w.Done(); !slices.Equal(lines, []string{"begun 1", "begun 1", "ended 1"}) {
		w.T.Errorf("after a kill the workers ran %q", lines)
	}
}

// railsMisspelt runs a worker on a queue that no job class has.
func railsMisspelt(w *clientlib.Worker) {
	w.T.Helper()
	w.Start()
	w.WaitExit()
	if out := w.Output.String(); !strings.Contains(out, "no job class has the queue mial, only default, ") {
		w.T.Errorf("the worker prints\n%s\nwant a warning about the queue", out)
	}
}

// railsMinimal runs the generator in an application that doesn't load Active Job, as "rails new --minimal" writes it.
func railsMinimal(t *testing.T, sc *kit.Sidecar, suite string) {
	t.Helper()
	for name, commented := range map[string]string{"commented": "# require \"active_job/railtie\"\n", "missing": ""} {
		if (name == "missing") != (suite == "trixie") && !kit.Soak {
			continue // the other release has it
		}
		app := clientlib.NewRailsApp(t, suite, filepath.Join(t.TempDir(), name))
		text := strings.NewReplacer("require \"active_job/railtie\"\n", commented, "require \"action_mailer/railtie\"\n", "").Replace(app.Read("config/application.rb"))
		text = regexp.MustCompile(`(?m)^.*config\.action_mailer.*\n`).ReplaceAllString(text, "")
		app.Write("config/application.rb", text)
		app.UseGem()
		if out := app.Run(nil, "ruby", "bin/rails", "generate", "qsidecar:install"); !strings.Contains(out, "require \"active_job/railtie\"") {
			t.Errorf("%s: the generator prints\n%s\nwant the line that it adds", name, out)
		}
		if out := app.Run([]string{"QSIDECAR_SOCKET=" + sc.Socket}, "ruby", "bin/rails", "runner", "p ActiveJob::Base.queue_adapter"); !strings.Contains(out, "QsidecarAdapter:") ||
			!strings.HasSuffix(out, " @client=#<Qsidecar::Client "+sc.Socket+">>\n") {
			t.Errorf("%s: the adapter is %q", name, out)
		}
	}
}

// railsOutlives changes the sidecars under workers of Active Job: see checkChange.
func railsOutlives(app *clientlib.RailsApp, command string) {
	app.T.Helper()
	const code = `puts JSON.generate(NoteJob.new("NUMBER").serialize.merge("queue_name" => "quick", "job_id" => "job NUMBER"))`
	serialized := app.Run(nil, "ruby", "bin/rails", "runner", code)
	for _, how := range changes() {
		if !kit.Soak && how.name != inTurn.name {
			continue // the Ruby worker of TestWorkersOutliveSidecars has it, and railsKilled starts a worker of Rails again
		}
		app.T.Run(how.name, func(t *testing.T) {
			t.Parallel()
			w := clientlib.NewWorker(t, restartSite(t).Start("a"), app.Env, "env", "sh", "-c", "exec "+command)
			w.Dir = app.Dir
			checkChange(w, kit.Size(10_000), how, func(number int) string {
				return strings.ReplaceAll(serialized, "NUMBER", strconv.Itoa(number))
			})
		})
	}
}

// railsOddPlaces enqueues in signal handlers, finalizers and at the end of the process.
func railsOddPlaces(app *clientlib.RailsApp, w *clientlib.Worker) {
	w.T.Helper()
	out := runner(app, w, "script/odd_places.rb")
	want := regexp.MustCompile(`usual: stored
signal: (Qsidecar::Reentrant|ThreadError)
thread of a signal: stored
subscriber: stored
in the middle of a call: Qsidecar::Reentrant
child: stored
parent: stored
at_exit: stored
finalizer at the end: Qsidecar::Closed
`)
	if !want.MatchString(out) {
		w.T.Errorf("script/odd_places.rb prints\n%s, want\n%s", out, want)
	}
	if got := w.Counts("odd"); got.Ready != 6 || got.Total() != 6 {
		w.T.Errorf("the queue odd has %+v, want 6 jobs", got)
	}
}

// railsEnqueueAll runs perform_all_later, and enqueues in transactions.
func railsEnqueueAll(app *clientlib.RailsApp, w *clientlib.Worker) {
	w.T.Helper()
	out := runner(app, w, "script/enqueue_all.rb")
	for _, want := range []string{
		"stored 1500 in 2 requests, ids 1500\n",
		"stored 7, and ActiveJob::EnqueueError: Qsidecar::BadRequest: priority 1000000 is out of range: -32767 to 32768\n",
		"rejected: Qsidecar::BadRequest: queue",
		"rejected: Qsidecar::BadRequest: an argument of NoteJob can't be JSON (encode bytes, with Base64 for example): ",
		"stored 3 in 3 requests\n",
		"before the commit: 0\n",
		"not connected: [[false, ActiveJob::EnqueueError]]\n",
	} {
		if !strings.Contains(out, want) {
			w.T.Errorf("script/enqueue_all.rb prints\n%s, want %q", out, want)
		}
	}
	if got := w.Counts("bulk"); got.Ready != 1499+7+3 || got.Scheduled != 1 {
		w.T.Errorf("the queue bulk has %+v", got)
	}
	testwait.Until(w.T, "the job of the transaction that was committed is stored", func() bool { return w.Counts("transaction").Ready == 1 })
	if got := w.Counts("transaction"); got.Total() != 1 {
		w.T.Errorf("the queue transaction has %+v, want the job that was committed", got)
	}
}
