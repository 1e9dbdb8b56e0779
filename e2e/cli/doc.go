// Package cli tests the commands check, work and stdio in detail.
package cli
