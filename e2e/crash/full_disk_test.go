package crash

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestFullDisk checks a full disk: no job is lost, an enqueue gets an error, and after space is
// freed everything works again.
func TestFullDisk(t *testing.T) {
	s := kit.NewSite(t)
	disk := filepath.Join(s.Dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	s.URL = "sqlite:" + filepath.Join(disk, "q.db")
	a := s.Sidecar("a")
	// A separate file system in a separate mount namespace needs no cleanup.
	unshare := "-m"
	if os.Geteuid() != 0 {
		unshare = "-Urm"
	}
	a.Wrap = []string{"unshare", unshare, "sh", "-c", `mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"`, disk}
	a.Start()
	c := a.Dial()
	kept := c.Enqueue("q", 10)

	inside := fmt.Sprintf("/proc/%d/root%s/filling", a.Cmd.Process.Pid, disk)
	fill(t, inside)
	big := strings.Repeat("x", 1<<20)
	e := c.MustFail("unavailable", kit.Msg{"op": "enqueue", "queue": "q", "payload": big})
	if !strings.Contains(e.Message, "full") || e.RetryMS <= 0 {
		t.Errorf("a full disk is reported as %+v, want the word full and retry_ms", e)
	}
	r := kit.RunCLIWith(t, s.Dir, nil, big, "enqueue", "q", "-", "--socket", a.Socket)
	r.WantError(t, 5, "full")
	c.Must(kit.Msg{"op": "ping"})
	r = kit.RunCLI(t, s.Dir, nil, "check", "--database", "sqlite:"+filepath.Join(filepath.Dir(inside), "q.db"))
	if r.Code != 1 || !strings.Contains(r.Stdout, "the disk of the database is full") {
		t.Errorf("check on a full disk ends with %d and prints\n%s", r.Code, r.Stdout)
	}

	if err := os.Remove(inside); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it goes on when there is room", func() bool {
		return c.Exchange(kit.Msg{"op": "enqueue", "queue": "q", "payload": "room"}).Error == nil
	})
	if got := c.Stats("q"); got.Ready != len(kept)+1 || got.Total() != got.Ready {
		t.Errorf("the queue has %+v, want %d ready jobs", got, len(kept)+1)
	}
}

// fill writes a file until the disk is full.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatalf("the small file system: %v (it needs mount and unshare, and the right to use them)", err)
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{zeros{}}, make([]byte, 512))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v after %d bytes", err, n)
	}
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
