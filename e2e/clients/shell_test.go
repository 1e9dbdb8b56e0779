package clients

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// shells are the shells that the library and the recipes support.
var shells = []string{"dash", "bash"}

var shellPage = kit.Path("clients/shell/README.md")

// runShell runs a script from the root of the repository and returns its output. The environment
// has the sidecar's socket, and the path has the program.
func runShell(sc *kit.Sidecar, t *testing.T, shell, script string) string {
	t.Helper()
	cmd := shellCommand(sc, t, shell, "-c", script)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s\nit printed %s", shell, err, script, out)
	}
	return string(out)
}

func shellCommand(sc *kit.Sidecar, t *testing.T, shell string, args ...string) *exec.Cmd {
	t.Helper()
	bin := filepath.Dir(kit.Binary)
	ctx := testwait.Context(t)
	cmd := exec.CommandContext(ctx, shell, args...)
	cmd.WaitDelay = time.Second
	cmd.Dir = kit.Path(".")
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// TestShellRecipes runs the recipes of the shell page for hosts without the program. Their job is
// done afterwards, or ready if the recipe only enqueues.
func TestShellRecipes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(shellPage)
	if err != nil {
		t.Fatal(err)
	}
	recipes := regexp.MustCompile("(?s)<!-- recipe -->\n```sh\n(.*?)```").FindAllSubmatch(page, -1)
	if len(recipes) < 5 {
		t.Fatalf("%s has %d recipes", shellPage, len(recipes))
	}
	for _, shell := range shells {
		a := kit.NewSite(t).Start("a") // a new site, because keys are remembered
		c := a.Dial()
		for _, r := range recipes {
			recipe := string(r[1])
			runShell(a, t, shell, "set -eu\n"+recipe)
			if strings.Contains(recipe, `"ack"`) {
				if n := c.Stats("mail").Total(); n != 0 {
					t.Errorf("%s: %d jobs are left by\n%s", shell, n, recipe)
				}
				continue
			}
			job := c.ClaimOne("mail")
			want := `{"to":"ada"}`
			if strings.Contains(recipe, "payload_b64") {
				want = "to: ada\x00"
			}
			if job.Payload != want {
				t.Errorf("%s: the payload is %q, want %q, by\n%s", shell, job.Payload, want, recipe)
			}
			c.Must(kit.Msg{"op": "ack", "lease": job.Lease})
		}
	}
}

// TestShellExample checks that the page's worker greets and ends gracefully.
func TestShellExample(t *testing.T) {
	t.Parallel()
	program := clientlib.Example(t, shellPage, "sh")
	if n := strings.Count(strings.TrimSpace(program), "\n") + 1; n > 10 {
		t.Errorf("the example has %d lines, want ten at most", n)
	}
	s := kit.NewSite(t)
	a := s.Start("a")
	file := filepath.Join(s.Dir, "example")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, shell := range shells {
		id := a.Dial().Put("greet", `"Ada"`)[0]
		cmd := shellCommand(a, t, shell, "-eu", file)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if want := "hello, Ada (job " + id + ", attempt 1)\n"; line != want {
			t.Errorf("%s: it printed %q, want %q (%v)", shell, line, want, err)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: after SIGTERM: %v, want the exit code 0", shell, err)
		}
	}
	if left := s.JobsInFile(t); len(left) > 0 {
		t.Errorf("jobs %v are left", left)
	}
}

// TestShellLibrary checks each function of the library and its error messages.
func TestShellLibrary(t *testing.T) {
	t.Parallel()
	s := kit.NewSite(t)
	s.Queues = "  \"*\": {retention: {done: 1h}, backoff: {initial: 1h, max: 1h}}\n"
	a := s.Start("a")
	c := a.Dial()
	const by = ". clients/shell/qsidecar.sh\n"
	for _, shell := range shells {
		q := "by-" + shell
		// One job at a time.
		out := runShell(a, t, shell, "set -eu\n"+by+`
id=$(qsidecar_enqueue `+q+` 'a  "b" $c\' --header x-kind=letter)
printf 'a\0b' | qsidecar_enqueue `+q+` - >/dev/null
qsidecar_claim `+q+`
[ "$QSIDECAR_JOB" = "$id" ]
qsidecar_payload
qsidecar_extend --lease 10m
qsidecar_ack --result fine
qsidecar_ack 2>/dev/null || echo " $?"
qsidecar_claim `+q+`
qsidecar_payload | tr '\0' '_'
qsidecar_nack --error "not today" --dead
qsidecar_claim `+q+` || echo " $?"`)
		if want := "a  \"b\" $c\\ 4\na_b 3\n"; out != want {
			t.Errorf("%s printed %q, want %q", shell, out, want)
		}
		// A worker: functions with arguments, global variables, each exit status.
		file := filepath.Join(s.Dir, "worker of "+shell)
		script := by + `
prefix=by
cd /
work() {
	what=$(cat)
	case $what in
	later) return 75 ;;
	dead) return 65 ;;
	fail) echo "no $what today" >&2; false; echo "it goes on" ;;
	nested) "$0" ` + shell + ` ;;
	*) echo "$prefix $1 $2 $what $-" ;;
	esac
}
qsidecar_work ` + q + ` --drain --result --dead-on 65 -- work 'an argument' yes`
		if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		ids := c.Put(q, "later", "dead", "fail", "letter")
		if out, err := shellCommand(a, t, shell, "-eu", file).Output(); err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
		for i, want := range []struct{ state, message, result string }{
			{"scheduled", "", ""}, {"dead", "exit status 65", ""}, {"scheduled", "exit status 1: no fail today", ""}, {"done", "", "by an argument yes letter "},
		} {
			j := c.Peek(q, ids[i])
			message := ""
			if len(j.Errors) > 0 {
				message = j.Errors[0].Message
			}
			if j.State != want.state || message != want.message || !strings.HasPrefix(j.Result, want.result) {
				t.Errorf("%s: the job is %+v, want %+v", shell, j, want)
			}
			if options := strings.TrimPrefix(j.Result, want.result); want.result != "" && !(strings.Contains(options, "e") && strings.Contains(options, "u")) {
				t.Errorf("%s: the function ran with the options %q, want e and u", shell, options)
			}
		}
		// Misuse.
		for script, words := range map[string]string{
			by + "work() { :; }\nqsidecar_work q -- work": "is not the file of one",
		} {
			cmd := shellCommand(a, t, shell, "-c", script)
			cmd.Stderr = nil
			_, err := cmd.Output()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.ExitCode() != 2 || !strings.Contains(string(exit.Stderr), words) {
				t.Errorf("%s %q: %v, want exit code 2 and %q", shell, script, err, words)
			}
		}
		for _, call := range []string{"qsidecar_work q work", "qsidecar_work q --", "qsidecar_work q -- no_such_function", "qsidecar_work"} {
			if err := os.WriteFile(file, []byte(by+"work() { :; }\n"+call), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := shellCommand(a, t, shell, "-eu", file)
			cmd.Stderr = nil
			_, err := cmd.Output()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.ExitCode() != 2 || !strings.Contains(string(exit.Stderr), "then -- and a function that stands above it") {
				t.Errorf("%s %q: %v, want exit code 2 and how it is used", shell, call, err)
			}
		}
	}
}
