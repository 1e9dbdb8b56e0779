package clientlib

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// NodePackage is the directory of the client under test.
var NodePackage = kit.Path("clients/node")

// nodeHome returns a directory in which the package is installed, as npm packs it.
var nodeHome = sync.OnceValues(func() (home string, err error) {
	home = filepath.Join(filepath.Dir(kit.Binary), "node")
	installed := filepath.Join(home, "node_modules", "qsidecar")
	if err := os.MkdirAll(installed, 0o755); err != nil {
		return "", err
	}
	pack := exec.Command("npm", "pack", "--silent", "--pack-destination", home)
	pack.Dir = NodePackage
	if out, err := pack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm pack: %w (scripts/need.sh npm installs npm)\n%s", err, out)
	}
	packed, err := filepath.Glob(filepath.Join(home, "*.tgz"))
	if err != nil || len(packed) != 1 {
		return "", fmt.Errorf("npm pack left the files %v, want one (%w)", packed, err)
	}
	if out, err := exec.Command("tar", "-xzf", packed[0], "-C", installed, "--strip-components=1").CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpacking %s: %w\n%s", packed[0], err, out)
	}
	return home, nil
})

// NodeHome returns a directory in which only the package is installed. Programs in it and below can import it.
func NodeHome(t *testing.T) string {
	t.Helper()
	home, err := nodeHome()
	if err != nil {
		t.Fatal(err)
	}
	return home
}

// NodeProgram returns the command that runs the installed qsidecar-node.
func NodeProgram(t *testing.T, args ...string) []string {
	t.Helper()
	return append([]string{"node", filepath.Join(NodeHome(t), "node_modules", "qsidecar", "bin", "qsidecar-node.js")}, args...)
}

// NodeWorker runs testdata/worker.mjs with qsidecar-node work.
func NodeWorker(t *testing.T, sc *kit.Sidecar, env []string, more ...string) *Worker {
	t.Helper()
	program, err := os.ReadFile(kit.Path("e2e/kit/clientlib/testdata/worker.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(NodeHome(t), "worker") // below the installed package, so that it can import it
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "worker.mjs")
	if err := os.WriteFile(file, program, 0o600); err != nil {
		t.Fatal(err)
	}
	// A job that opens the gate keeps a thread of this pool.
	env = append(env, "UV_THREADPOOL_SIZE=64")
	return NewWorker(t, sc, env, append(NodeProgram(t, "work", file, "-j", "8"), more...)...)
}

// NpmPackages installs the npm packages that the package-lock.json of a folder lists, if they are missing, and returns
// the directory that has their node_modules. It is below the directory that also has the database servers.
func NpmPackages(folder string) (home string, err error) {
	lock, err := os.ReadFile(filepath.Join(folder, "package-lock.json"))
	if err != nil {
		return "", err
	}
	cache, err := local.CacheDir()
	if err != nil {
		return "", err
	}
	home = filepath.Join(cache, fmt.Sprintf("npm-%x", sha256.Sum256(lock))[:len("npm-")+16])
	if _, err := os.Stat(home); err == nil {
		return home, nil
	}
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(work, name), text, 0o644); err != nil {
			return "", err
		}
	}
	npm := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	npm.Dir = work
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w (scripts/need.sh npm installs npm)\n%s", err, out)
	}
	if err := os.Rename(work, home); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err // if it exists, another run installed it at the same time
	}
	return home, nil
}
