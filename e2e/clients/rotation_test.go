package clients

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

// fullJobs is how many jobs the first queue of TestSecondQueueIsServed has.
const fullJobs = 60

// TestSecondQueueIsServed checks that a job of a worker's second queue doesn't wait until the first one is empty, and that each
// worker can prefer the first one.
func TestSecondQueueIsServed(t *testing.T) {
	t.Parallel()
	gems, bin := clientlib.RubyGem(t)
	python := []string{clientlib.PythonEnv(t, clientlib.PythonPackage), "-m", "qsidecar", "work", "jobs:app", "-j", "1", "--drain"}
	ruby := []string{"ruby", filepath.Join(bin, "qsidecar-work"), "-c", "1", "--drain"}
	files := map[string]string{
		"jobs.js": "const { appendFileSync } = require('node:fs')\nconst { Worker } = require(process.env.QSIDECAR_PACKAGE)\n" +
			"const work = (job) => appendFileSync(process.env.WORKER_LOG, job.queue + '\\n')\nmodule.exports = new Worker({full: work, rare: work})\n",
		"jobs.py": "import os, qsidecar\napp = qsidecar.App()\ndef work(job):\n    with open(os.environ['WORKER_LOG'], 'a') as f:\n" +
			"        print(job.queue, file=f)\napp.job('full')(work)\napp.job('rare')(work)\n",
		"jobs.rb": "worker = Qsidecar::Worker.new\n%w[full rare].each { |q| worker.job(q) { |job| File.write(ENV.fetch(\"WORKER_LOG\"), \"#{job.queue}\\n\", mode: \"a\") } }\n",
	}
	for name, c := range map[string]struct{ env, argv []string }{
		"qsidecar work": {nil, []string{kit.Binary, "work", "full", "rare", "--drain"}},
		"python":        {nil, python},
		"ruby":          {gems, ruby},
		"node":          {[]string{"QSIDECAR_PACKAGE=" + clientlib.NodePackage}, clientlib.NodeProgram(t, "work", "jobs.js", "-j", "1", "--drain")},
	} {
		for _, order := range []string{"", "rotate", "strict", "weights"} {
			t.Run(name+" "+order, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				for name, text := range files {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				argv := slices.Clone(c.argv)
				switch order {
				case "":
				case "weights":
					argv = append(argv, "--weights", "full=5")
				default:
					argv = append(argv, "--order", order)
				}
				switch name {
				case "qsidecar work":
					argv = append(argv, "--", "sh", "-c", `echo "$QSIDECAR_QUEUE" >>"$WORKER_LOG"`)
				case "ruby":
					argv = append(argv, "jobs.rb")
				}
				w := clientlib.NewWorker(t, kit.NewSite(t).Start("a"), c.env, argv...)
				fillQueues(w.Sidecar, order)
				w.Dir = dir
				w.Start()
				testwait.Until(t, "the worker ends", w.Exited)
				_, lines := w.Done()
				checkRareJobs(t, lines, order)
				text := map[string]string{"": "full, rare in rotation", "rotate": "full, rare in rotation", "strict": "full, rare in strict order", "weights": "full=5, rare in rotation"}[order]
				if out := w.Output.String(); name != "qsidecar work" && !strings.Contains(out, "worker started: queues "+text) {
					t.Errorf("it prints %q, want a start line with %q", out, text)
				}
			})
		}
	}
	for _, order := range []string{"", "rotate", "strict", "weights"} {
		t.Run("go "+order, func(t *testing.T) {
			t.Parallel()
			sc := kit.NewSite(t).Start("a")
			fillQueues(sc, order)
			var mu sync.Mutex
			var done []string
			worker := qsidecar.Worker{
				Queues: []string{"full", "rare"}, Drain: true, Options: qsidecar.Options{Socket: sc.Socket},
				Handler: func(_ context.Context, job *qsidecar.Job) error {
					mu.Lock()
					defer mu.Unlock()
					done = append(done, job.Queue)
					return nil
				},
			}
			if worker.Order = protocol.Order(order); order == "weights" {
				worker.Order, worker.Weights = "", map[string]int64{"full": 5}
			}
			if err := worker.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkRareJobs(t, done, order)
		})
	}
}

// TestWorkNamesTheOrder checks the line with which `qsidecar work` on several queues begins.
func TestWorkNamesTheOrder(t *testing.T) {
	t.Parallel()
	for order, text := range map[string]string{"rotate": "queues full, rare in rotation\n", "strict": "queues full, rare in strict order\n"} {
		w := clientlib.NewWorker(t, kit.NewSite(t).Start("a"), nil, kit.Binary, "work", "full", "rare", "--order", order, "--", "true")
		w.Start()
		testwait.Until(t, "the line is there", func() bool { return strings.Contains(w.Output.String(), text) })
	}
}

// TestRubyWorkerQueues checks that qsidecar-work works chosen queues, each with its own number of threads.
func TestRubyWorkerQueues(t *testing.T) {
	t.Parallel()
	gems, bin := clientlib.RubyGem(t)
	dir := t.TempDir()
	file := "worker = Qsidecar::Worker.new\n%w[mail api other].each { |q| worker.job(q) { |job| File.write(ENV.fetch(\"WORKER_LOG\"), \"#{job.queue}\\n\", mode: \"a\") } }\n"
	if err := os.WriteFile(filepath.Join(dir, "jobs.rb"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (*clientlib.Worker, int) {
		w := clientlib.NewWorker(t, kit.NewSite(t).Start("a"), gems, append([]string{"ruby", filepath.Join(bin, "qsidecar-work"), "--drain"}, append(args, "jobs.rb")...)...)
		for _, q := range []string{"mail", "api", "other"} {
			w.Sidecar.Dial().Enqueue(q, 3)
		}
		w.Dir = dir
		w.Start()
		testwait.Until(t, "the worker ends", w.Exited)
		return w, w.Cmd.ProcessState.ExitCode()
	}
	w, code := run("-q", "mail=2", "--queue", "api", "-c", "4")
	if out := w.Output.String(); code != 0 || !strings.Contains(out, "worker started: queues api, concurrency 4; queues mail, concurrency 2, processes 1") {
		t.Errorf("it ends with %d and prints %q", code, out)
	}
	_, lines := w.Done()
	if slices.Sort(lines); !slices.Equal(lines, []string{"api", "api", "api", "mail", "mail", "mail"}) {
		t.Errorf("it ran jobs of %v", lines)
	}
	for arg, want := range map[string]string{
		"sms":      "the worker has no block for the queue sms, only for mail, api, other",
		"mail=0":   "invalid argument: -q mail=0",
		"mail=x":   "invalid argument: -q mail=x",
		"mail=257": "queue mail: 257 isn't a number of jobs from 1 to 256",
	} {
		if w, code := run("-q", arg); code != 2 || !strings.Contains(w.Output.String(), "qsidecar-work: "+want+"\n") {
			t.Errorf("-q %s ends with %d and prints %q", arg, code, w.Output)
		}
	}
}

// fillQueues stores many jobs in the queue full, and then one in rare, or with weights more.
func fillQueues(sc *kit.Sidecar, order string) {
	c := sc.Dial()
	c.Enqueue("full", fullJobs)
	c.Enqueue("rare", rareJobs(order))
}

func rareJobs(order string) int {
	if order == "weights" {
		return 12
	}
	return 1
}

// checkRareJobs checks when the jobs of the second queue were run: as one of the first, as the last, or as one of six.
func checkRareJobs(t *testing.T, done []string, order string) {
	t.Helper()
	at := slices.Index(done, "rare")
	if len(done) != fullJobs+rareJobs(order) || at < 0 || (order == "strict") != (at == fullJobs) || order != "strict" && at > 3 {
		t.Errorf("the job of the second queue was number %d of %d", at+1, len(done))
	}
	if order != "weights" || len(done) < 36 {
		return
	}
	rare := 0
	for _, q := range done[:36] {
		if q == "rare" {
			rare++
		}
	}
	if rare < 5 || rare > 8 {
		t.Errorf("%d of the first 36 jobs are of the second queue, want about 6 by the weights 5 and 1", rare)
	}
}
