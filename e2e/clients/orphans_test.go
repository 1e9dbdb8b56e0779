package clients

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// orphanJobs is how many jobs leave a process behind.
const orphanJobs = 12

// orphan is a job in sh. It ends at once, and its process of the background when the gate opens.
const orphan = `: <"$WORKER_GATE" >/dev/null 2>&1 &`

// asSubreaper runs a program that gets all orphans below it, as `podman run` without --init does.
const asSubreaper = `import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])`

// TestOrphansAreReaped checks that a worker that is the first process of a container, or a subreaper, leaves no zombie
// of the processes that its jobs leave behind. It also checks that it stops in order.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file("orphans.py", "import subprocess, qsidecar\napp = qsidecar.App()\n"+
		"@app.job(\"orphans\")\ndef orphans(job):\n    subprocess.run([\"sh\", \"-c\", '''"+orphan+"'''], check=True)\n")
	rubyFile := file("orphans.rb", "worker = Qsidecar::Worker.new\n"+
		"worker.job(\"orphans\") { system(\"sh\", \"-c\", %q("+orphan+"), exception: true) }\n")
	work := []string{kit.Binary, "work", "orphans", "-j", "2", "--", "sh", "-c", orphan}
	gems, bin := clientlib.RubyGem(t)
	python := []string{clientlib.PythonEnv(t, clientlib.PythonPackage), "-m", "qsidecar", "work", "orphans:app", "-j", "2"}
	ruby := []string{"ruby", filepath.Join(bin, "qsidecar-work"), "-c", "2"}
	for _, c := range []struct {
		name      string
		container bool
		env, argv []string
	}{
		{"qsidecar work as a subreaper", false, nil, append([]string{python[0], "-c", asSubreaper}, work...)},
		{"qsidecar work", true, nil, work},
		{"python", true, []string{"PYTHONPATH=" + dir}, python},
		{"python with processes", true, []string{"PYTHONPATH=" + dir}, append(slices.Clip(python), "--processes")},
		{"ruby", true, gems, append(slices.Clip(ruby), rubyFile)},
		{"ruby with processes", true, gems, append(slices.Clip(ruby), "-p", "2", rubyFile)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			argv := c.argv
			if c.container {
				argv = append(asFirstProcess(t), argv...)
			}
			w := clientlib.NewWorker(t, kit.NewSite(t).Start("a"), c.env, argv...)
			w.Start()
			adopter := strconv.Itoa(w.Cmd.Process.Pid)
			if c.container {
				testwait.Until(t, "the first process runs", func() bool { return len(w.Children()) == 1 })
				adopter = w.Children()[0]
			}
			w.Sidecar.Dial().Enqueue("orphans", orphanJobs)
			w.WaitEmpty("orphans")
			var orphans []string
			testwait.Until(t, "the worker has the orphans", func() bool {
				orphans = childrenOf(t, adopter, "sh")
				return len(orphans) == orphanJobs
			})
			w.OpenGate()
			for _, pid := range orphans {
				testwait.Until(t, "orphan "+pid+" is reaped", func() bool {
					_, err := os.Stat("/proc/" + pid)
					return os.IsNotExist(err)
				})
			}
			number, err := strconv.Atoi(adopter)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(number, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			w.WaitExit()
		})
	}
}

// asFirstProcess returns a command that runs a program as the first process of a container.
func asFirstProcess(t *testing.T) []string {
	t.Helper()
	argv := []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	if out, err := exec.Command(argv[0], append(argv[1:len(argv):len(argv)], "true")...).CombinedOutput(); err != nil {
		t.Skipf("only root can start a first process here: %v: %s", err, out)
	}
	return argv
}

// childrenOf returns the child processes of a process that run a program, also if they are zombies.
func childrenOf(t *testing.T, parent, program string) (pids []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		end := bytes.LastIndexByte(text, ')') // the name, in brackets, can contain anything
		fields := strings.Fields(string(text[end+1:]))
		if len(fields) > 1 && fields[1] == parent && bytes.Contains(text[:end+1], fmt.Appendf(nil, "(%s)", program)) {
			pids = append(pids, filepath.Base(filepath.Dir(stat)))
		}
	}
	return pids
}
