// Package testseed gives tests random numbers that a seed replays.
package testseed

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// EnvSeed names the environment variable that replays a run: `make soak` prints its seed.
const EnvSeed = "QSIDECAR_TEST_SEED"

// Rand is a source of random numbers for one test. It logs the seed. Tests of the same
// seed get different numbers, the same ones in each run.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(EnvSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%q is not a number: %v", EnvSeed, text, err)
		}
	}
	t.Logf("seed: %s=%d", EnvSeed, seed)
	name := fnv.New64a()
	name.Write([]byte(t.Name())) // it never fails
	return rand.New(rand.NewPCG(seed, name.Sum64()))
}
