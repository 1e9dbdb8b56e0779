package system

import (
	"archive/tar"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// releaseTag is the version that the test's repository gives its commit.
const releaseTag = "v1.2.3-rc.1"

// released is the release for all tests that inspect one. It is built once.
var released = sync.OnceValues(func() (release, error) {
	dir, err := os.MkdirTemp(filepath.Dir(kit.Binary), "release-") // removed with the binary
	if err != nil {
		return release{}, err
	}
	r := release{dir: dir, clone: filepath.Join(dir, "here", "qsidecar")}
	if err := r.commit(); err != nil {
		return release{}, err
	}
	return r, r.build(r.clone, filepath.Join(dir, "dist"), "TZ=UTC")
})

// release is a repository with this source as its only commit, a clone of it, and the output of
// scripts/release.sh in the clone.
type release struct{ dir, clone string }

// dist returns the directory of the release's files.
func (r release) dist() string { return filepath.Join(r.dir, "dist") }

// commit copies this checkout's files, including uncommitted changes, into a repository.
func (r release) commit() error {
	source := kit.Path(".")
	repository := filepath.Join(r.dir, "repository.git")
	git := func(args ...string) error {
		return runIn(source, []string{"GIT_DIR=" + repository, "GIT_WORK_TREE=" + source}, "git",
			append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "core.bare=false", "-c", "gc.auto=0"}, args...)...)
	}
	return errors.Join(
		runIn(source, nil, "git", "init", "-q", "--bare", repository),
		git("add", "--all"), git("commit", "-q", "-m", "what is tested"), git("tag", releaseTag),
		runIn(source, nil, "git", "clone", "-q", repository, r.clone))
}

// build builds the release of a clone into out: for this machine, and in a soak run for all systems. TestOtherSystemsCompile checks the others.
func (r release) build(clone, out string, env ...string) error {
	systems := []string{"linux/" + runtime.GOARCH}
	if kit.Soak {
		systems = nil
	}
	return runIn(clone, append(env, "OUT="+out), filepath.Join(clone, "scripts/release.sh"), systems...)
}

// runIn runs a command in dir. Its error contains the command's output.
func runIn(dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(errors.New(cmd.String()), err, errors.New(string(out)))
	}
	return nil
}

// archived returns the files of an archive, by their names below its only directory.
func archived(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	folder := strings.TrimSuffix(filepath.Base(archive), ".tar.gz")
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, folder+"/")
		if !ok || h.Uid != 0 || h.Gid != 0 || h.Uname+h.Gname != "" {
			t.Errorf("%s: has %s of %d:%d (%s:%s), want root's by number, in %s", archive, h.Name, h.Uid, h.Gid, h.Uname, h.Gname, folder)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReleaseIsReproducible checks that two clones in different directories and environments give
// the same bytes. In a soak run, the compiler also has no cache.
func TestReleaseIsReproducible(t *testing.T) {
	t.Parallel()
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(r.dir, "some", "where", "else")
	again := filepath.Join(r.dir, "again")
	if err := runIn(r.dir, nil, "sh", "-c", "umask 077; git clone -q repository.git "+elsewhere); err != nil {
		t.Fatal(err)
	}
	env := []string{"TZ=Pacific/Auckland", "LC_ALL=de_DE.UTF-8", "GOAMD64=v3", "GOFLAGS=-buildvcs=false", "QSIDECAR_VERSION=9"}
	if kit.Soak {
		env = append(env, "GOCACHE="+filepath.Join(r.dir, "gocache"))
	}
	if err := r.build(elsewhere, again, env...); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(r.dist(), "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{r.dist(), again} {
		check := exec.Command("sha256sum", "--check", "--strict")
		check.Dir, check.Stdin = dir, strings.NewReader(string(sums))
		out, err := check.CombinedOutput()
		files, readErr := os.ReadDir(dir)
		if err != nil || readErr != nil || strings.Count(string(sums), "\n") != len(files)-1 {
			t.Errorf("%s: %v, %v, %d files:\n%s", dir, err, readErr, len(files), out)
		}
	}
	t.Logf("the same in both:\n%s", sums)
}

// TestReleaseArchives checks the content of each archive, that its program is static and for the
// machine in its name, and that this machine's program runs and reports its version.
func TestReleaseArchives(t *testing.T) {
	t.Parallel()
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimPrefix(releaseTag, "v")
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		if arch != runtime.GOARCH && !kit.Soak {
			continue
		}
		files := archived(t, filepath.Join(r.dist(), "qsidecar-"+version+"-linux-"+arch+".tar.gz"))
		for _, name := range []string{
			"README.md", "LICENSE", "deploy/qsidecar.example.yaml", "LICENSES.txt", "deploy/systemd/qsidecar.service", "man/qsidecar.1", "man/qsidecar-work.1",
			"completions/qsidecar.bash", "completions/qsidecar.zsh", "completions/qsidecar.fish",
		} {
			if len(files[name]) < 1000 {
				t.Errorf("%s: %s has %d bytes", arch, name, len(files[name]))
			}
		}
		linked(t, arch, files)
		program := filepath.Join(t.TempDir(), "qsidecar")
		if err := local.WriteProgram(program, files["qsidecar"]); err != nil {
			t.Fatal(err)
		}
		f, err := elf.Open(program)
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := f.ImportedLibraries()
		interpreter := f.Section(".interp")
		f.Close()
		if f.Machine != machine || err != nil || len(libraries) > 0 || interpreter != nil {
			t.Errorf("%s: a program for %v that needs %v (%v) and the interpreter %v, want a static one for %v", arch, f.Machine, libraries, err, interpreter, machine)
		}
		if arch != runtime.GOARCH {
			continue
		}
		head, err := exec.Command("git", "-C", r.clone, "log", "-1", "--format=%H").Output()
		if err != nil {
			t.Fatal(err)
		}
		v := versionOfProgram(t, program)
		if v.Version != version || v.Commit != strings.TrimSpace(string(head)) || v.Modified || v.CommitTime == "" {
			t.Errorf("the program reports %+v, want %s of commit %s", v, version, head)
		}
	}
}

// TestReleaseClients installs each package of a client where nothing else is installed, and runs the example of its README.
func TestReleaseClients(t *testing.T) {
	t.Parallel()
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	for pattern, c := range map[string]struct{ readme, language, file, install, run string }{
		"qsidecar-node-*.tgz": {
			"clients/node/README.md", "js", "example.mjs",
			`npm install --silent --offline --no-audit --no-fund FILE
			cd node_modules/qsidecar && test -s LICENSE -a -s README.md -a -s index.d.ts -a -s index.d.mts
			cd ../.. && node -e "new (require('qsidecar').Client)()" && node_modules/.bin/qsidecar-node --help`,
			"node example.mjs",
		},
		"qsidecar-*.whl": {
			"clients/python/README.md", "python", "example.py",
			"python3 -m venv v; v/bin/pip install --quiet --disable-pip-version-check --no-index FILE; v/bin/python -m qsidecar work --help",
			"v/bin/python example.py",
		},
		"qsidecar-1.0.0.tar.gz": {
			"clients/python/README.md", "python", "example.py",
			"python3 -m venv v; v/bin/pip install --quiet --disable-pip-version-check FILE",
			"v/bin/python example.py",
		},
		"qsidecar-*.gem": {
			"clients/ruby/README.md", "ruby", "example.rb",
			"gem install --silent --local --no-document --install-dir g --bindir b FILE; GEM_HOME=$PWD/g b/qsidecar-work --help",
			"env GEM_HOME=g GEM_PATH=g ruby example.rb",
		},
	} {
		t.Run(pattern, func(t *testing.T) {
			t.Parallel()
			packages, err := filepath.Glob(filepath.Join(r.dist(), pattern))
			if err != nil || len(packages) != 1 {
				t.Fatalf("the release has the packages %v (%v), want one", packages, err)
			}
			dir := t.TempDir()
			if err := runIn(dir, []string{"HOME=" + dir}, "sh", "-ec", strings.ReplaceAll(c.install, "FILE", packages[0])); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(clientlib.Example(t, kit.Path(c.readme), c.language)), 0o644); err != nil {
				t.Fatal(err)
			}
			s := kit.NewSite(t)
			cmd := exec.Command("sh", "-c", "exec "+c.run)
			cmd.Dir, cmd.Stderr = dir, os.Stderr
			cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+s.Start("a").Socket)
			clientlib.RunExample(t, cmd)
			if left := s.JobsInFile(t); len(left) > 0 {
				t.Errorf("jobs %v are left", left)
			}
		})
	}
}

// TestReleasedPages checks that Debian's package contains the files that the README links to, as
// the archives do.
func TestReleasedPages(t *testing.T) {
	t.Parallel()
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	deb := filepath.Join(r.dist(), debName(strings.Replace(strings.TrimPrefix(releaseTag, "v"), "-", "~", 1)))
	if err := runIn(dir, nil, "dpkg-deb", "-x", deb, "."); err != nil {
		t.Fatal(err)
	}
	doc := filepath.Join(dir, "usr/share/doc/qsidecar")
	files := make(map[string][]byte)
	err = filepath.WalkDir(doc, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(doc, path)
		if err == nil {
			files[name], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	linked(t, "the .deb", files)
}

// link matches a link to another file.
var link = regexp.MustCompile(`\]\(([^)#:]+)`)

// linked checks that each file that a page links to exists, except source code.
func linked(t *testing.T, where string, files map[string][]byte) {
	t.Helper()
	links := 0
	for name, text := range files {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		for _, l := range link.FindAllSubmatch(text, -1) {
			to := filepath.Join(filepath.Dir(name), string(l[1]))
			if file, err := os.Stat(kit.Path(to)); err != nil || file.IsDir() || strings.HasSuffix(to, ".go") {
				continue // a directory of the source
			}
			links++
			if _, has := files[to]; !has {
				t.Errorf("%s: %s links to %s, which it lacks", where, name, to)
			}
		}
	}
	if links < 50 {
		t.Errorf("%s: %d links, want those of all pages", where, links)
	}
}

// TestReleaseManPages checks that mandoc reports no warning about the manual pages.
func TestReleaseManPages(t *testing.T) {
	t.Parallel()
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	files := archived(t, filepath.Join(r.dist(), "qsidecar-"+strings.TrimPrefix(releaseTag, "v")+"-linux-"+runtime.GOARCH+".tar.gz"))
	dir := t.TempDir()
	lint := exec.Command("mandoc", "-T", "lint", "-W", "warning")
	for name, text := range files {
		if strings.HasPrefix(name, "man/") {
			page := filepath.Join(dir, filepath.Base(name))
			if err := os.WriteFile(page, text, 0o644); err != nil {
				t.Fatal(err)
			}
			lint.Args = append(lint.Args, page)
		}
	}
	if out, err := lint.CombinedOutput(); err != nil || len(lint.Args) < 25 {
		t.Errorf("%d manual pages: %v\n%s", len(lint.Args)-5, err, out)
	}
}

// TestReleaseOfChangedSource checks that a program built from changed source reports that.
func TestReleaseOfChangedSource(t *testing.T) {
	t.Parallel()
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	clone, program := filepath.Join(r.dir, "changed"), filepath.Join(r.dir, "changed-qsidecar")
	if err := runIn(r.dir, nil, "git", "clone", "-q", "repository.git", clone); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(clone, "README.md"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := runIn(clone, []string{"GOFLAGS=-buildvcs=true"}, "scripts/build.sh", program); err != nil {
		t.Fatal(err)
	}
	if v := versionOfProgram(t, program); !v.Modified || v.Version != strings.TrimPrefix(releaseTag, "v")+"+dirty" {
		t.Errorf("it reports %+v", v)
	}
}

// versionOutput is the output of `qsidecar version --json`.
type versionOutput struct {
	Version    string `json:"version"`
	Commit     string `json:"commit"`
	CommitTime string `json:"commit_time"`
	Modified   bool   `json:"modified"`
}

func versionOfProgram(t *testing.T, program string) (v versionOutput) {
	t.Helper()
	out, err := exec.Command(program, "version", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &v); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	return v
}
