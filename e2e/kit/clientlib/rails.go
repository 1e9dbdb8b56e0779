package clientlib

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// railsPackages are the packages of Debian for the application in testdata/rails.
var railsPackages = []string{"ruby", "ruby-railties", "ruby-activerecord", "ruby-activejob", "ruby-actionmailer", "ruby-sqlite3", "ruby-msgpack", "ruby-bootsnap"}

// A RailsApp is a new Rails application whose Gemfile has the gem, on the Ruby and Rails of a Debian suite. No bundle
// is installed: bundler finds the gems in Debian's packages.
type RailsApp struct {
	T    *testing.T
	Dir  string
	Env  []string
	Path string // of its programs
}

// NewRailsApp copies the application in testdata/rails to a new folder of that name.
func NewRailsApp(t *testing.T, suite, dir string) *RailsApp {
	t.Helper()
	bin := railsPrograms(t, suite)
	if err := os.CopyFS(dir, os.DirFS(kit.Path("e2e/kit/clientlib/testdata/rails"))); err != nil {
		t.Fatal(err)
	}
	path := bin + ":" + os.Getenv("PATH")
	return &RailsApp{T: t, Dir: dir, Path: path, Env: []string{
		"PATH=" + path, "BUNDLE_GEMFILE=" + filepath.Join(dir, "Gemfile"), "RAILS_ENV=development",
		"BUNDLE_SILENCE_ROOT_WARNING=1", "BUNDLE_SILENCE_DEPRECATIONS=1", "RUBYLIB=", "GEM_HOME=" + filepath.Join(bin, "gems"), "HOME=" + dir,
		"BOOTSNAP_CACHE_DIR=" + filepath.Join(dir, "tmp/cache"),
	}}
}

// UseGem adds the gem, built and installed, to the application's Gemfile.
func (r *RailsApp) UseGem() {
	r.T.Helper()
	file := filepath.Join(r.Dir, "Gemfile")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(text, "gem \"qsidecar\"\n"...), 0o644)
	}
	if err != nil {
		r.T.Fatal(err)
	}
}

// Run runs a program in the application's folder, and returns its output.
func (r *RailsApp) Run(env []string, argv ...string) string {
	r.T.Helper()
	out, err := r.Command(env, argv...).CombinedOutput()
	if err != nil {
		r.T.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}

// Command returns a program to run in the application's folder.
func (r *RailsApp) Command(env []string, argv ...string) *exec.Cmd {
	r.T.Helper()
	cmd := exec.CommandContext(r.T.Context(), "env", argv...) // env finds the program in the application's PATH
	cmd.Dir, cmd.Env = r.Dir, append(append(os.Environ(), r.Env...), env...)
	return cmd
}

// Read returns the text of a file of the application.
func (r *RailsApp) Read(name string) string {
	r.T.Helper()
	text, err := os.ReadFile(filepath.Join(r.Dir, name))
	if err != nil {
		r.T.Fatal(err)
	}
	return string(text)
}

// Write replaces the text of a file of the application.
func (r *RailsApp) Write(name, text string) {
	r.T.Helper()
	if err := os.WriteFile(filepath.Join(r.Dir, name), []byte(text), 0o644); err != nil {
		r.T.Fatal(err)
	}
}

// railsPrograms returns a folder with ruby, bundle and qsidecar-work, which use only the packages of a Debian suite.
func railsPrograms(t *testing.T, suite string) string {
	t.Helper()
	root, err := debian.Root(t.Context(), "rails-bootsnap-"+suite, suite, railsPackages...)
	if err != nil {
		t.Fatal(err)
	}
	loader, libraries, err := debian.Loader(root)
	if err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob(filepath.Join(root, "usr/bin/ruby[0-9]*"))
	versions, failed := filepath.Glob(filepath.Join(root, "usr/lib/ruby/[0-9]*"))
	if err != nil || failed != nil || len(programs) != 1 || len(versions) != 1 {
		t.Fatalf("%s has the programs %v (%v) and the versions %v (%v) of Ruby, want one: remove the folder, and it is fetched again",
			root, programs, err, versions, failed)
	}
	version := filepath.Base(versions[0])
	ruby, arch := filepath.Join(root, "usr/lib/ruby"), filepath.Join(root, "usr/lib", filepath.Base(filepath.Dir(loader)))
	library := strings.Join([]string{
		filepath.Join(ruby, "vendor_ruby"), filepath.Join(arch, "ruby/vendor_ruby", version), versions[0], filepath.Join(arch, "ruby", version),
	}, ":")
	bin := t.TempDir()
	_, installed := RubyGem(t)
	work, err := filepath.Glob(filepath.Join(filepath.Dir(installed), "gems/qsidecar-*/exe/qsidecar-work"))
	if err != nil || len(work) != 1 {
		t.Fatalf("the gem has the programs %v (%v)", work, err)
	}
	gems := strings.Join([]string{
		filepath.Join(root, "usr/share/rubygems-integration/all"), filepath.Join(root, "usr/share/rubygems-integration", version),
		filepath.Join(arch, "rubygems-integration", version), filepath.Join(ruby, "gems", version), defaultGems(t, filepath.Join(ruby, "gems", version), bin), filepath.Dir(installed),
	}, ":")
	for name, script := range map[string]string{
		"ruby": fmt.Sprintf("export RUBYLIB=%q\"${RUBYLIB:+:$RUBYLIB}\" GEM_PATH=%q\nexec %q --library-path %q %q \"$@\"\n", library, gems, loader, libraries, programs[0]),
		"bundle": fmt.Sprintf("exec %q -rbundler -rbundler/cli -rbundler/friendly_errors -e %q -- \"$@\"\n",
			filepath.Join(bin, "ruby"), "Bundler.with_friendly_errors { Bundler::CLI.start(ARGV) }"),
	} {
		if err := local.WriteProgram(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(work[0], filepath.Join(bin, "qsidecar-work")); err != nil {
		t.Fatal(err)
	}
	return bin
}

var extensions = regexp.MustCompile(`(?m)^.*\.extensions = .*\n`)

// defaultGems returns a folder with the specifications of Ruby's own gems. This Ruby looks for them where Debian
// would have installed it. Their extensions are in Ruby's own library.
func defaultGems(t *testing.T, gems, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(gems, "specifications/default/*.gemspec"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s has no default gems (%v): remove the folder, and it is fetched again", gems, err)
	}
	home := filepath.Join(dir, "default")
	if err := os.MkdirAll(filepath.Join(home, "specifications"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(home, "specifications", filepath.Base(file)), extensions.ReplaceAll(text, nil), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return home
}
