// Package e2e drives the built binary the way its users do: real processes, real
// sockets, a real database file, and kills. It has tests only; the packages below
// it are tested where they are. QSIDECAR_BIN names the binary (without it one is
// built), QSIDECAR_SOAK=1 asks for the full sizes.
package e2e
