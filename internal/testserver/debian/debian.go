// Package debian fetches packages of Debian, and unpacks them for programs that run without an installation.
package debian

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// EnvMirror names a Debian mirror (as in sources.list: http://host/debian) from which to fetch
// servers. The default is the mirror of this system's apt.
const EnvMirror = "QSIDECAR_TEST_DEBIAN_MIRROR"

// perl satisfies the dependency of scripts that the tests do not run.
const perl = `Package: perl
Status: install ok installed
Multi-Arch: allowed
Architecture: %s
Version: 99
Maintainer: nobody <nobody@localhost>
Description: none

`

// Install fetches packages of a Debian suite with all their dependencies, including libc, and
// unpacks them as home, all or nothing. It installs nothing: apt works in its own directories and
// assumes that this system has only perl.
func Install(ctx context.Context, cache, suite, home string, names ...string) error {
	return local.Locked(filepath.Join(cache, "debian.lock"), func() (err error) {
		if _, err := os.Stat(home); err == nil {
			return nil
		}
		mirrors, err := mirrors(ctx)
		if err != nil {
			return err
		}
		var failed error
		for _, mirror := range mirrors {
			err := debianFrom(ctx, cache, mirror, suite, home, names)
			if err == nil {
				return nil
			}
			failed = errors.Join(failed, fmt.Errorf("%v of Debian's %s from %s: %w", names, suite, mirror, err))
		}
		return failed
	})
}

// Root returns a directory with packages of a Debian suite and all their dependencies,
// unpacked for a chroot. It fetches them once and caches them under name, which must be unique to
// the suite and the packages.
func Root(ctx context.Context, name, suite string, packages ...string) (string, error) {
	cache, err := local.CacheDirOf(local.Account{})
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, name)
	return home, Install(ctx, cache, suite, home, packages...)
}

func debianFrom(ctx context.Context, cache, mirror, suite, home string, names []string) (err error) {
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	apt, err := private(ctx, work, mirror, suite)
	if err != nil {
		return err
	}
	// Try several times: a suite can change between reading its list and fetching the packages.
	for range 3 {
		if err = local.Run(ctx, "apt-get", append(apt, "update", "--error-on=any")...); err == nil {
			err = local.Run(ctx, "apt-get", append(append(apt, "--download-only", "install"), names...)...)
		}
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "cache", "archives", "*.deb"))
	if err != nil || len(debs) == 0 {
		return fmt.Errorf("apt-get fetched no package (%w)", err)
	}
	root := filepath.Join(work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for _, deb := range debs {
		if err := local.Run(ctx, "dpkg-deb", "--extract", deb, root); err != nil {
			return err
		}
	}
	if err := os.Chmod(root, 0o755); err != nil { // dpkg-deb gives it the mode of the packages
		return err
	}
	return os.Rename(root, home)
}

// private returns the options that make apt-get work below dir only. Other settings, such as a
// proxy, still apply.
func private(ctx context.Context, dir, mirror, suite string) ([]string, error) {
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/sources.d"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	arch, err := exec.CommandContext(ctx, "dpkg", "--print-architecture").Output()
	if err != nil {
		return nil, fmt.Errorf("dpkg --print-architecture: %w", err)
	}
	signed := ""
	if keys := "/usr/share/keyrings/debian-archive-keyring.gpg"; local.Exists(keys) {
		signed = "[signed-by=" + keys + "] "
	}
	files := map[string]string{
		"status":           fmt.Sprintf(perl, strings.TrimSpace(string(arch))),
		"etc/sources.list": fmt.Sprintf("deb %s%s %s main\n", signed, mirror, suite),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	options := []string{"-q", "-y"}
	for _, o := range []string{
		"Dir::State=" + dir + "/state", "Dir::State::status=" + dir + "/status", "Dir::Cache=" + dir + "/cache",
		"Dir::Etc=" + dir + "/etc", "Dir::Etc::sourcelist=sources.list", "Dir::Etc::sourceparts=sources.d",
		"Dir::Etc::preferencesparts=preferences.d", "APT::Sandbox::User=root", "APT::Install-Recommends=false",
		"APT::Update::Post-Invoke=", "APT::Update::Post-Invoke-Success=",
		"Acquire::Languages=none", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"Acquire::Retries=2", "Acquire::http::Timeout=20", "Acquire::https::Timeout=20",
	} {
		options = append(options, "-o", o)
	}
	return options, nil
}

// mirrors returns the mirrors of this system's apt, if it is a Debian.
func mirrors(ctx context.Context) (found []string, err error) {
	if m := os.Getenv(EnvMirror); m != "" {
		return []string{m}, nil
	}
	const hint = "set " + EnvMirror + " to a Debian mirror (and install apt and dpkg), or name servers in " +
		"QSIDECAR_TEST_MYSQL, QSIDECAR_TEST_MARIADB and QSIDECAR_TEST_MARIADB_OLD"
	release := osRelease()
	if release["ID"] != "debian" {
		return nil, fmt.Errorf("this system isn't a Debian, so its mirror is unknown: %s", hint)
	}
	// Use separate lists, so that it works as any user and if no lists were ever fetched.
	work, err := os.MkdirTemp("", "qsmy-lists-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.Mkdir(filepath.Join(work, "partial"), 0o755); err != nil {
		return nil, err
	}
	// Another source of this system can be broken. Only the list matters.
	out, failed := exec.CommandContext(ctx, "apt-get", "-o", "Dir::State::lists="+work, "-o", "APT::Sandbox::User=root",
		"update", "--print-uris").Output()
	suites := release["VERSION_CODENAME"] + "|stable|testing|unstable|sid"
	for _, file := range []string{"main/binary-", "InRelease"} { // the more reliable one first
		for _, m := range regexp.MustCompile(`(?m)^'(\S+)/dists/(?:`+suites+`)/`+file).FindAllStringSubmatch(string(out), -1) {
			if !slices.Contains(found, m[1]) {
				found = append(found, m[1])
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("this system's apt has no source of Debian itself (%w): %s", failed, hint)
	}
	return found, nil
}

// osRelease returns the fields of /etc/os-release, or none.
func osRelease() map[string]string {
	fields := map[string]string{}
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return fields
	}
	defer func() { _ = f.Close() }() // it was only read
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), "="); ok {
			fields[k] = strings.Trim(v, `"`)
		}
	}
	return fields
}

// Loader returns the dynamic loader of the unpacked packages in home, and the path of their
// libraries.
func Loader(home string) (loader, libraries string, err error) {
	var found []string
	for _, pattern := range []string{"usr/lib/*/ld-linux-*.so.*", "lib/*/ld-linux-*.so.*"} {
		match, err := filepath.Glob(filepath.Join(home, pattern))
		if err != nil {
			return "", "", err
		}
		found = append(found, match...)
	}
	if len(found) == 0 {
		return "", "", fmt.Errorf("%s has no loader: remove the folder, and it is fetched again", home)
	}
	arch := filepath.Base(filepath.Dir(found[0]))
	return found[0], filepath.Join(home, "usr/lib", arch) + ":" + filepath.Join(home, "lib", arch), nil
}

// System returns a directory with a bootable Debian of that suite: the minimal system and
// systemd. It installs it once and caches it. Boot a copy or an overlay, and do not write into it.
// took is 0 if it was cached. It needs root and debootstrap.
func System(ctx context.Context, suite string) (root string, took time.Duration, err error) {
	cache, err := local.CacheDirOf(local.Account{})
	if err != nil {
		return "", 0, err
	}
	root = filepath.Join(cache, "system-"+suite)
	err = local.Locked(root+".lock", func() error {
		if local.Exists(root) {
			return nil
		}
		began := time.Now()
		mirrors, err := mirrors(ctx)
		if err != nil {
			return err
		}
		var failed error
		for _, mirror := range mirrors {
			err := bootstrap(ctx, cache, mirror, suite, root)
			if err == nil {
				took = time.Since(began)
				return nil
			}
			failed = errors.Join(failed, fmt.Errorf("a Debian %s from %s: %w", suite, mirror, err))
		}
		return failed
	})
	return root, took, err
}

// bootstrap creates root, all or nothing.
func bootstrap(ctx context.Context, cache, mirror, suite, root string) (err error) {
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	args := []string{"--foreign", "--variant=minbase", "--include=systemd,systemd-sysv"}
	if keys := "/usr/share/keyrings/debian-archive-keyring.gpg"; local.Exists(keys) {
		args = append(args, "--keyring="+keys)
	}
	made := filepath.Join(work, "root")
	if err := local.Run(ctx, "debootstrap", append(args, suite, made, mirror)...); err != nil {
		return err
	}
	// A power failure can leave it incomplete. Then it is created again.
	if err := os.WriteFile(filepath.Join(made, "etc/dpkg/dpkg.cfg.d/unsafe-io"), []byte("force-unsafe-io\n"), 0o644); err != nil {
		return err
	}
	if err := local.Run(ctx, "chroot", made, "/debootstrap/debootstrap", "--second-stage"); err != nil {
		return err
	}
	for _, fetched := range []string{"var/cache/apt/archives", "var/lib/apt/lists"} {
		if err := os.RemoveAll(filepath.Join(made, fetched)); err != nil {
			return err
		}
	}
	return os.Rename(made, root)
}
