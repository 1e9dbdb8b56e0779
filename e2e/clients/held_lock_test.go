package clients

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
)

// TestJobThatHoldsTheInterpreter shows a limit that the pages name. A job that keeps all other threads of its process from running
// (Python's GIL, Ruby's GVL) also keeps the client from connecting again. If a restart of the sidecar falls into that, and it is
// longer than restart_grace, the job is delivered again. So are the other jobs of the process, but none of another process.
func TestJobThatHoldsTheInterpreter(t *testing.T) {
	t.Parallel()
	gems, bin := clientlib.RubyGem(t)
	python := []string{clientlib.PythonEnv(t, clientlib.PythonPackage), "-m", "qsidecar", "work", "jobs:app", "-j", "2"}
	ruby := []string{"ruby", filepath.Join(bin, "qsidecar-work")}
	node := clientlib.NodeProgram(t, "work", "jobs.mjs", "-j", "2")
	files := map[string]string{
		// PyDLL holds the GIL during the call, which waits until the gate is open.
		"jobs.py": "import ctypes, os, qsidecar\napp = qsidecar.App()\ngate = os.environ['WORKER_GATE']\ndef begin(job):\n" +
			"    with open(os.environ['WORKER_LOG'], 'a') as f:\n        print(job.queue, job.attempt, file=f)\n" +
			"@app.job('hold')\ndef hold(job):\n    begin(job)\n    ctypes.PyDLL(None).open(gate.encode(), 0)\n" +
			"@app.job('beside')\ndef beside(job):\n    begin(job)\n    open(gate).close()\n",
		"jobs.rb": "require \"fiddle\"\nopening = Fiddle::Function.new(Fiddle::Handle::DEFAULT[\"open\"], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_INT], Fiddle::TYPE_INT, need_gvl: true)\n" +
			"gate = ENV.fetch(\"WORKER_GATE\")\nstart = ->(job) { File.write(ENV.fetch(\"WORKER_LOG\"), \"#{job.queue} #{job.attempt}\\n\", mode: \"a\") }\n" +
			"worker = Qsidecar::Worker.new\nworker.job(\"hold\") { |job| start.call(job); opening.call(gate, 0) }\n" +
			"worker.job(\"beside\") { |job| start.call(job); File.open(gate).close }\n",
		"jobs.mjs": "import fs from 'node:fs'\nimport { Worker } from '" + filepath.Join(clientlib.NodeHome(t), "node_modules", "qsidecar", "index.mjs") + "'\n" +
			"const gate = process.env.WORKER_GATE\nconst start = (job) => fs.appendFileSync(process.env.WORKER_LOG, `${job.queue} ${job.attempt}\\n`)\n" +
			"export default new Worker({ hold: (job) => { start(job); fs.openSync(gate) }, beside: async (job) => { start(job); await fs.promises.open(gate) } })\n",
	}
	for name, c := range map[string]struct {
		env, argv []string
		processes bool
	}{
		"python":                {nil, python, false},
		"python with processes": {nil, append(slices.Clip(python), "--processes"), true},
		"ruby":                  {gems, append(slices.Clip(ruby), "-c", "2", "jobs.rb"), false},
		"node":                  {nil, node, false},
		"ruby with processes":   {gems, append(slices.Clip(ruby), "-c", "1", "-p", "2", "jobs.rb"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s := kit.NewSite(t)
			s.SidecarTimeout, s.Extra = 20*time.Second, "drain_timeout: 300ms\n" // the other process connects again in time
			sc := s.Sidecar("a")
			sc.WriteConfig(strings.Replace(sc.ReadConfig(), "sidecar_timeout: 20s", "sidecar_timeout: 20s, restart_grace: 20s", 1))
			sc.Start()
			w := clientlib.NewWorker(t, sc, c.env, c.argv...)
			w.Dir = dir
			client := sc.Dial()
			client.Put("beside", "x")
			w.Start()
			w.DoneAtLeast(1)
			client.Put("hold", "x")
			w.DoneAtLeast(2)
			sc.Signal(syscall.SIGTERM)
			sc.WaitExit()
			sc.Start()
			client = sc.Dial()
			if job := client.ClaimOne("hold"); job.Attempt != 2 {
				t.Errorf("the job that holds the interpreter is delivered with attempt %d, want 2", job.Attempt)
			}
			if !c.processes {
				if job := client.ClaimOne("beside"); job.Attempt != 2 {
					t.Errorf("the job beside it is delivered with attempt %d, want 2", job.Attempt)
				}
			} else if got := w.Counts("beside"); got.Claimed != 1 {
				t.Errorf("the job of another process isn't its own any more: %+v", got)
			}
			w.OpenGate()
			w.Terminate()
		})
	}
}
