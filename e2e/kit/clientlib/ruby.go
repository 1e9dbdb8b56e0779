package clientlib

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// RubyPackage is the directory of the client under test.
var RubyPackage = kit.Path("clients/ruby")

// RubyWorkerFile is the program that RubyWorker runs.
var RubyWorkerFile = kit.Path("e2e/kit/clientlib/testdata/worker.rb")

// rubyGems returns a directory in which only the package is installed, built as a gem.
var rubyGems = sync.OnceValues(func() (home string, err error) {
	home = filepath.Join(filepath.Dir(kit.Binary), "gems")
	file := filepath.Join(filepath.Dir(kit.Binary), "qsidecar.gem")
	for _, args := range [][]string{
		{"build", "--silent", "qsidecar.gemspec", "-o", file},
		{"install", "--local", "--no-document", "--silent", file},
	} {
		cmd := exec.Command("gem", args...)
		cmd.Dir, cmd.Env = RubyPackage, append(os.Environ(), gemEnv(home)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("gem %v: %w\n%s", args, err, out)
		}
	}
	return home, nil
})

// gemEnv makes Ruby find only the gems in home, so without msgpack.
func gemEnv(home string) []string { return []string{"GEM_HOME=" + home, "GEM_PATH=" + home} }

// RubyGem returns the environment for the installed package, and the directory of its programs.
func RubyGem(t *testing.T) (env []string, bin string) {
	t.Helper()
	home, err := rubyGems()
	if err != nil {
		t.Fatal(err)
	}
	return gemEnv(home), filepath.Join(home, "bin")
}

// RubyWorker runs testdata/worker.rb with the gem's qsidecar-work.
func RubyWorker(t *testing.T, sc *kit.Sidecar, env []string, more ...string) *Worker {
	t.Helper()
	gems, bin := RubyGem(t)
	gems = gems[:1] // this system's gems too, so with msgpack
	argv := append([]string{"ruby", "-w", filepath.Join(bin, "qsidecar-work")}, more...)
	return NewWorker(t, sc, append(env, gems...), append(argv, RubyWorkerFile)...)
}
