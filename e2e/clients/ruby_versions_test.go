package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// rubies are the Debian suites whose Ruby runs the client, besides this system's Ruby: the oldest
// supported one and a new one.
var rubies = map[string]string{"bullseye": "2.7.", "trixie": "3.3."}

// oldMsgpack is the suite whose msgpack is too old.
const oldMsgpack = "bullseye"

// debianRuby returns a command that runs only the Ruby of a Debian suite, with msgpack or without.
func debianRuby(t *testing.T, suite string, msgpack bool) string {
	t.Helper()
	root, err := debian.Root(t.Context(), "ruby-"+suite, suite, "ruby", "ruby-msgpack")
	if err != nil {
		t.Fatal(err)
	}
	loader := only(t, root, "lib/*/ld-linux-*.so.*", "usr/lib/*/ld-linux-*.so.*")
	arch := filepath.Base(filepath.Dir(loader))
	library := only(t, root, "usr/lib/ruby/[0-9]*")
	version := filepath.Base(library)
	path := []string{library, filepath.Join(root, "usr/lib", arch, "ruby", version)}
	for _, of := range []string{
		"usr/lib/ruby/vendor_ruby", "usr/lib/" + arch + "/ruby/vendor_ruby/" + version, // the gems of bullseye
		"usr/lib/" + arch + "/rubygems-integration/" + version + "/gems/msgpack-*/lib",
		"usr/lib/" + arch + "/rubygems-integration/" + version + "/extensions/*/*/msgpack-*",
	} {
		found, err := filepath.Glob(filepath.Join(root, of))
		if err != nil {
			t.Fatal(err)
		}
		if msgpack {
			path = append(path, found...)
		}
	}
	script := filepath.Join(t.TempDir(), "ruby")
	used := msgpack && suite != oldMsgpack
	words := fmt.Sprintf("#!/bin/sh\nexport RUBYLIB=%q MSGPACK=%t\nexec %q --library-path %q %q --disable-gems -w \"$@\"\n",
		strings.Join(path, ":"), used, loader,
		filepath.Join(root, "usr/lib", arch)+":"+filepath.Join(root, "lib", arch), only(t, root, "usr/bin/ruby[0-9]*"))
	if err := local.WriteProgram(script, []byte(words)); err != nil {
		t.Fatal(err)
	}
	return script
}

// only returns the one file below root that a pattern matches.
func only(t *testing.T, root string, patterns ...string) string {
	t.Helper()
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			slices.Sort(found)
			return found[0]
		}
	}
	t.Fatalf("%s has none of %v: remove the folder, and it is fetched again", root, patterns)
	return ""
}

// TestRubyVersions runs the kit and the suite on the oldest and a new Ruby. The oldest one has a msgpack that is too old, and the client does not use
// it; the new one has none. A soak also swaps that. TestRubyKit and TestRubySuite run on this system's Ruby with msgpack.
func TestRubyVersions(t *testing.T) {
	t.Parallel()
	for suite, version := range rubies {
		for _, msgpack := range []bool{false, true} {
			if msgpack != (suite == oldMsgpack) && !kit.Soak {
				continue
			}
			t.Run(fmt.Sprintf("%s, msgpack there: %v", suite, msgpack), func(t *testing.T) {
				t.Parallel()
				ruby := debianRuby(t, suite, msgpack)
				out, err := exec.Command(ruby, "-e", "print RUBY_VERSION").CombinedOutput()
				if err != nil || !strings.HasPrefix(string(out), version) {
					t.Fatalf("the Ruby of %s is %s (%v), want %s", suite, out, err, version)
				}
				codec := "json"
				if msgpack && suite != oldMsgpack {
					codec = "msgpack"
				}
				if report, ok := runKit(t, codec, testwait.Limit, ruby, filepath.Join(clientlib.RubyPackage, "kit_adapter.rb")); !ok {
					t.Errorf("the kit on the Ruby client:\n%s", report)
				}
				rubySuite(t, ruby)
			})
		}
	}
}

// TestRubySuite runs the suite on this system's Ruby.
func TestRubySuite(t *testing.T) {
	t.Parallel()
	rubySuite(t, "ruby", "-w")
}

// rubySuite runs testdata/suite.rb on its own sidecar.
func rubySuite(t *testing.T, ruby ...string) {
	t.Helper()
	s := kit.NewSite(t)
	s.Queues = "  \"*\": {backoff: {initial: 1h, max: 1h}}\n" // a job that failed must not come back to a slow worker before it ends
	s.Queues += "  waited: {retention: {done: 1h}}\n"
	sc := s.Start("a")
	cmd := exec.CommandContext(t.Context(), ruby[0], append(ruby[1:], "-I", clientlib.RubyPackage+"/lib", "testdata/suite.rb")...)
	cmd.Env = append(os.Environ(), "QSIDECAR_SOCKET="+sc.Socket, fmt.Sprint("SUITE_LIMIT=", int(testwait.Limit.Seconds())))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the suite on %v: %v\n%s", ruby, err, out)
	} else if text := strings.TrimSpace(string(out)); text != "" {
		t.Errorf("the suite on %v has warnings:\n%s", ruby, text)
	}
}
