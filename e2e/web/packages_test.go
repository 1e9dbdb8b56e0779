package web

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// nodePackages installs the npm packages that package-lock.json lists, if they are missing, and returns the directory
// that has their node_modules. It is below the directory that also has the database servers.
var nodePackages = sync.OnceValues(func() (string, error) {
	lock, err := os.ReadFile(kit.Path("e2e/web/package-lock.json"))
	if err != nil {
		return "", err
	}
	cache, err := local.CacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, fmt.Sprintf("browser-%x", sha256.Sum256(lock))[:len("browser-")+16])
	if _, err := os.Stat(home); err == nil {
		return home, nil
	}
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(kit.Path("e2e/web/" + name))
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
	err = os.Rename(work, home)
	if _, failed := os.Stat(home); failed == nil {
		return home, nil // by this run or by another one at the same time
	}
	return "", err
})
