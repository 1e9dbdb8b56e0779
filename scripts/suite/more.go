package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/testseed"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// engines are the packages with one engine's tests. EnvEngine of package testserver restricts
// packages that test several engines.
var engines = map[string][]string{
	"memory":    {"./backends/memory", "./bridge"},
	"sqlite":    {"./backends/sqlite/..."},
	"postgres":  {"./backends/postgres", "./backends/adopted"},
	"mysql":     {"./backends/mysql", "./backends/adopted"},
	"mariadb":   {"./backends/mysql", "./backends/adopted"},
	"sqlserver": {"./backends/sqlserver/..."},
}

// runEngine runs the tests of one engine, with each of its versions.
func runEngine(ctx context.Context, o options) error {
	packages, ok := engines[o.engine]
	if !ok {
		return fmt.Errorf("no engine %q", o.engine)
	}
	r, err := newReport("test-"+o.engine, true, o)
	if err != nil {
		return err
	}
	if err := testSuite.prepare(ctx); err != nil {
		return err
	}
	env := append(testEnv(), testserver.EnvEngine+"="+o.engine)
	r.run(ctx, []stream{{{name: "tests", test: slices.Concat(common(o), []string{"-short", "-timeout=15m"}, packages), env: env}}})
	return r.finish()
}

// clusterTests are the names of the engines' tests of clusters. With -short they are skipped.
const clusterTests = "Galera|Group(Hosts|Loses)|Standby|Primary|Replica|OldSource|SilentHost|LateConnection"

// runCluster runs the tests of database clusters: the runs of failovers with -short, and those of the engines.
func runCluster(ctx context.Context, o options) error {
	r, err := newReport("test-cluster", false, o)
	if err != nil {
		return err
	}
	if err := clusterSuite.prepare(ctx); err != nil {
		return err
	}
	env := testEnv()
	engines := []string{"-run=" + clusterTests, "-timeout=15m", "./backends/postgres", "./backends/mysql"}
	r.run(ctx, []stream{{
		{name: "engines", test: append(common(o), engines...), env: env},
		{name: "runs", test: append(common(o), "-short", "-timeout=15m", "./e2e/cluster"), env: env},
	}})
	return r.finish()
}

// runCover prints the statement coverage of each package by a suite: by its tests, and by the
// program in end-to-end tests.
func runCover(ctx context.Context, o options) error {
	data, err := filepath.Abs(filepath.Join(o.out, "coverage-"+o.suite))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	if err := os.MkdirAll(data, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(data, 0o777); err != nil { // some tests run the program as another user
		return err
	}
	suite, err := suiteNamed(o.suite)
	if err != nil {
		return err
	}
	r, err := newReport("cover", suite.short, o)
	if err != nil {
		return err
	}
	if err := suite.prepare(ctx); err != nil {
		return err
	}
	list, err := suite.streams(ctx, o)
	if err != nil {
		return err
	}
	program := filepath.Join(data, "qsidecar")
	build := exec.CommandContext(ctx, "go", "build", "-cover", "-coverpkg=./...", "-o", program, "./cmd/qsidecar")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as released: the image has no libraries
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the program: %w\n%s", err, out)
	}
	for _, s := range list {
		for i := range s {
			if s[i].dir == "deploy" {
				continue // its containers and services have no folder for the data
			}
			s[i].env = append(s[i].env, "QSIDECAR_BIN="+program, "GOCOVERDIR="+data)
			if s[i].test != nil && s[i].dir == "" {
				s[i].test = slices.Concat([]string{"-cover", "-coverpkg=./..."}, s[i].test, []string{"-args", "-test.gocoverdir=" + data})
			}
		}
	}
	r.run(ctx, list)
	if err := os.Remove(program); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "go", "tool", "covdata", "percent", "-i="+data).CombinedOutput()
	fmt.Printf("%s", out)
	if err != nil {
		return fmt.Errorf("go tool covdata: %w", err)
	}
	return r.finish()
}

// runSoak repeats the tests that have a full size, each time with another seed, until the time is
// over, a test fails or ctx ends.
func runSoak(ctx context.Context, o options) error {
	r, err := newReport("soak", false, o)
	if err != nil {
		return err
	}
	if err := checkSuite.prepare(ctx); err != nil {
		return err
	}
	packages, err := list(ctx)
	if err != nil {
		return err
	}
	packages = slices.DeleteFunc(packages, func(p string) bool {
		return !strings.Contains(p, "/e2e/") && !strings.Contains(p, "/backends/") && !strings.HasSuffix(p, "/clients/go")
	})
	for n := 1; ; n++ {
		seed := o.seed
		if seed == 0 {
			seed = rand.Uint64() >> 11 // short enough to type
		}
		text := strconv.FormatUint(seed, 10)
		fmt.Printf("run %d: make soak SEED=%s replays it\n", n, text)
		env := append(testEnv(), "QSIDECAR_SOAK=1", testseed.EnvSeed+"="+text)
		test := slices.Concat(common(o), []string{"-shuffle=" + text, "-p=1", "-timeout=300m"}, packages)
		r.run(ctx, []stream{{{name: "soak", test: test, env: env}}})
		if r.failedIn("soak") || ctx.Err() != nil || o.seed != 0 || time.Since(r.start) > o.time && o.time > 0 {
			return r.finish()
		}
	}
}
